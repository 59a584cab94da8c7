"""Codecs that run in Python, as functions of Spark: Arrow arrays in and out, pandas nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import BinaryType, StringType

from penstock.codecs.interface import Bridge
from penstock.codecs.make import make_codec
from penstock.config.flow import Stage
from penstock.errors import ConfigError

OneByOne = Callable[[bytes], bytes]


def decoder(stage: Stage) -> Any:
    """Payloads to JSON text."""
    codec = _bridge(stage)

    def to_json(payloads: pa.Array) -> pa.Array:
        return codec.to_json(payloads)

    return arrow_udf(to_json, StringType())


def encoder(stage: Stage) -> Any:
    """JSON text to payloads."""
    codec = _bridge(stage)

    def from_json(texts: pa.Array) -> pa.Array:
        return codec.from_json(texts)

    return arrow_udf(from_json, BinaryType())


def _bridge(stage: Stage) -> Bridge:
    codec = make_codec(stage)
    if not isinstance(codec, Bridge):
        raise ConfigError(f"the codec {stage.name} cannot be used here")
    return codec


def changer(change: OneByOne, refused: type[Exception]) -> Any:
    """Payloads to payloads, one by one: null where `change` raises `refused`."""

    def changed(payloads: pa.Array) -> pa.Array:
        return pa.array([_changed(one, change, refused) for one in payloads], pa.binary())

    return arrow_udf(changed, BinaryType())


def _changed(payload: pa.Scalar, change: OneByOne, refused: type[Exception]) -> bytes | None:
    if not payload.is_valid:
        return None
    try:
        return change(payload.as_py())
    except refused:
        return None
