"""The application: its operations, its errors, its door."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from penstock.admin import problems, receipts, topics
from penstock.admin.door import Door
from penstock.admin.metrics import exposition
from penstock.admin.models import Health, ProcessHealth, Ready
from penstock.admin.problems import Refused, documented
from penstock.log.interface import Log
from penstock.supervisor.overview import Overview
from penstock.version import __version__

_METRICS_DOC = {
    "description": "Prometheus's text format.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


def build_app(overview: Overview, log: Log, *, own_host: str | None) -> FastAPI:
    """`own_host` as in `Door`: the configured host if it is loopback, else None."""
    # Only the document is served: the usual pages to browse it load scripts from elsewhere.
    app = FastAPI(
        title="Penstock admin",
        version=__version__,
        description="Health, metrics, topics and receipts of a running flow.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=documented(400, 403, 405),
    )
    problems.install(app)
    app.add_middleware(Door, own_host=own_host)
    app.include_router(_flow_router(overview))
    app.include_router(topics.router(log))
    app.include_router(receipts.router(overview))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _flow_router(overview: Overview) -> APIRouter:
    flow = APIRouter(tags=["flow"])

    @flow.get("/health")
    async def health() -> Health:
        """The processes of the flow. Answers 200 for as long as the supervisor lives."""
        processes = overview.processes()
        return Health(
            status="ok" if all(process.up for process in processes) else "degraded",
            flow=overview.flow,
            version=__version__,
            processes=[ProcessHealth.of(process) for process in processes],
        )

    @flow.get("/ready", responses=documented(503))
    async def ready() -> Ready:
        """200 while the flow takes traffic; 503, with the reason, until recovery is done."""
        reason = overview.not_ready()
        if reason is not None:
            raise Refused(503, reason)
        return Ready()

    @flow.get("/metrics", response_class=Response, responses={200: _METRICS_DOC})
    async def metrics() -> Response:
        snapshot = await overview.collect()
        body = exposition(overview.flow, overview.processes(), snapshot)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return flow


def _openapi(app: FastAPI) -> dict[str, object]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        definition = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(definition.pop("$defs", {}))
        schemas["Problem"] = definition
        # The framework's own error shapes are never sent.
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        app.openapi_schema = document
    return app.openapi_schema
