"""Links that change payloads and meta."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, model_validator

import penstock.codecs.options  # noqa: F401  declares the codecs that a format may name
from penstock.config.flow import Stage
from penstock.config.options import NoOptions, Options, SizeBytes
from penstock.config.registry import REGISTRY, Kind, declare
from penstock.limits import MAX_INFLATED_BYTES

BASE64 = "base64"
_LEVELS = {"gzip": (-1, 9), "zlib": (-1, 9), "zstd": (-1, 22), "lz4": (0, 16), "snappy": (0, 0)}


@declare(
    Kind.LINK, "meta_parser", "Reads `k=v&k2=v2 payload` into meta and the rest.", available=True
)
class MetaParserOptions(NoOptions):
    pass


@declare(Kind.LINK, "compressor", "Compresses payloads, or unpacks them.", available=True)
class CompressorOptions(Options):
    algorithm: Literal["gzip", "zlib", "zstd", "snappy", "lz4"] = Field(
        validation_alias=AliasChoices("algorithm", "compress")
    )
    """The format."""

    direction: Literal["compress", "decompress"] = "compress"
    """Which way."""

    level: int | None = Field(None, ge=-1, le=22)
    """How hard to pack. Default: what the format takes for usual."""

    max_inflated: SizeBytes = Field(MAX_INFLATED_BYTES, ge=1)
    """What one payload may unpack to. More is invalid."""

    @model_validator(mode="after")
    def _level_known(self) -> Self:
        low, high = _LEVELS[self.algorithm]
        if self.level is not None and not low <= self.level <= high:
            between = f"{low} to {high}" if high else "no levels"
            raise ValueError(f"{self.algorithm} has {between}, not {self.level}")
        return self


class FormatOptions(Options):
    format: str = Field(min_length=1, validation_alias=AliasChoices("format", "codec"))
    """`base64`, or the name of a codec."""

    options: dict[str, Any] = Field(default_factory=dict)
    """The codec's options."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.format == BASE64:
            if self.options:
                raise ValueError("base64 has no options")
        elif REGISTRY.find(Kind.CODEC, self.format) is None:
            known = ", ".join(sorted(REGISTRY.names(Kind.CODEC)))
            raise ValueError(f"there is no format {self.format!r}; it is base64, {known}")
        else:
            self.stage()
        return self

    def stage(self) -> Stage | None:
        """The codec; None for base64."""
        if self.format == BASE64:
            return None
        found = REGISTRY.find(Kind.CODEC, self.format)
        assert found is not None, "it was looked up before"
        try:
            options = found.options.model_validate(self.options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"the codec {found.name}: `{where}`: {first['msg']}") from None
        return Stage(found.name, options, found.available)


@declare(Kind.LINK, "encode", "From values to payloads: base64, or a codec.", available=True)
class EncodeOptions(FormatOptions):
    pass


@declare(Kind.LINK, "decode", "From payloads to values: base64, or a codec.", available=True)
class DecodeOptions(FormatOptions):
    pass
