"""Links that change payloads and meta."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from penstock.config.options import NoOptions, Options
from penstock.config.registry import Kind, declare


@declare(Kind.LINK, "meta_parser", "Reads `k=v&k2=v2 payload` into meta and the rest.")
class MetaParserOptions(NoOptions):
    pass


@declare(Kind.LINK, "compressor", "Compresses payloads, or unpacks them.")
class CompressorOptions(Options):
    algorithm: Literal["gzip", "zlib", "zstd", "snappy", "lz4"] = Field(
        validation_alias=AliasChoices("algorithm", "compress")
    )
    """The format."""

    direction: Literal["compress", "decompress"] = "compress"
    """Which way."""

    level: int | None = Field(None, ge=-1, le=22)
    """How hard to pack. Default: what the format takes for usual."""


class FormatOptions(Options):
    format: str = Field(min_length=1, validation_alias=AliasChoices("format", "codec"))
    """`base64`, or the name of a codec."""


@declare(Kind.LINK, "encode", "From values to payloads: base64, or a codec.")
class EncodeOptions(FormatOptions):
    pass


@declare(Kind.LINK, "decode", "From payloads to values: base64, or a codec.")
class DecodeOptions(FormatOptions):
    pass
