"""`/receipts`: what became of a message."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from penstock.admin.models import MAX_OFFSET, ReceiptModel, ReceiptQuery
from penstock.admin.problems import documented
from penstock.limits import MAX_NAME_CHARS, MAX_STREAM_NAME_BYTES
from penstock.message import EventId
from penstock.supervisor.overview import Overview

PeerPart = Annotated[str, Path(min_length=1, max_length=MAX_NAME_CHARS)]
StreamPart = Annotated[str, Path(min_length=1, max_length=MAX_STREAM_NAME_BYTES)]
SeqPart = Annotated[int, Path(ge=0, le=MAX_OFFSET)]


def router(overview: Overview) -> APIRouter:
    receipts = APIRouter(tags=["receipts"])

    @receipts.get(
        "/receipts/{peer}/{stream:path}/{seq}",
        response_model=ReceiptModel,
        response_model_exclude_unset=True,
        responses=documented(404, 422, 503),
    )
    def find_receipt(
        peer: PeerPart, stream: StreamPart, seq: SeqPart, query: Annotated[ReceiptQuery, Query()]
    ) -> dict[str, object]:
        """The receipt of the message PEER/STREAM/SEQ, the id that its sender was answered with."""
        event = EventId(peer, stream, seq)
        receipt = overview.find_receipt(event, query.place)
        return {**receipt.to_json(), "id": str(event)}

    return receipts
