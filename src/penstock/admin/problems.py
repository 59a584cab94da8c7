"""Every error of the API in one shape: RFC 9457 problem details, `application/problem+json`."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from penstock import logs
from penstock.errors import (
    InvalidName,
    LogFull,
    LogLocked,
    NoSuchTopic,
    PenstockError,
    TopicExists,
    Unavailable,
    UnknownMessage,
)

log = logs.get("admin")

MEDIA_TYPE = "application/problem+json"
_SHOWN_ERRORS = 20
_CODES: dict[type[PenstockError], int] = {
    NoSuchTopic: 404,
    UnknownMessage: 404,
    TopicExists: 409,
    LogLocked: 409,
    InvalidName: 422,
    LogFull: 507,
    Unavailable: 503,
}


class InvalidPart(BaseModel):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(extra="forbid")

    where: str = Field(description="The part of the request: `query.limit`, `body.partitions`.")
    reason: str


class Problem(BaseModel):
    """What went wrong, in the shape of RFC 9457."""

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    title: str = Field(description="The name of the HTTP status.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What was wrong, and what to do about it.")
    errors: list[InvalidPart] = Field(
        default=[], description="Where a request was not valid, part by part."
    )


class Refused(Exception):
    """Raised by an operation to answer with a problem of this status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def answer(
    status: int,
    detail: str,
    *,
    errors: list[InvalidPart] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or []
    )
    return JSONResponse(
        problem.model_dump(), status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation declares in OpenAPI for the problems it may answer with."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Answer every kind of error that can leave an operation."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(PenstockError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return answer(error.status, error.detail)


async def _known(request: Request, error: Exception) -> JSONResponse:
    for kind, status in _CODES.items():
        if isinstance(error, kind):
            return answer(status, str(error))
    log.error("request failed", path=request.url.path, error=logs.describe(error))
    return answer(500, str(error))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    parts = [
        InvalidPart(
            where=_clean(".".join(str(step) for step in found["loc"])), reason=_clean(found["msg"])
        )
        for found in error.errors()[:_SHOWN_ERRORS]
    ]
    first = f"{parts[0].where}: {parts[0].reason}" if parts else "the request cannot be read"
    return answer(422, first, errors=parts)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        detail = f"there is nothing at {_clean(request.url.path)}; see /openapi.json"
    elif error.status_code == 405:
        detail = f"{_clean(request.method)} is not a method of {_clean(request.url.path)}"
        headers["Allow"] = ", ".join(_methods(request))
    return answer(error.status_code, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """Of every operation at this path; the framework names those of the first it finds."""
    for template, operations in request.app.openapi()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, request.url.path):
            return sorted(method.upper() for method in operations)
    return ["GET", "HEAD"]  # the description itself


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.exception("request failed", error, path=request.url.path)
    return answer(500, "this should not have happened; the log of `penstock run` says more")


def _clean(text: str) -> str:
    """Text from a request, short and encodable, for use in an answer."""
    return text[:200].encode("utf-8", "replace").decode()
