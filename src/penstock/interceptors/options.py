"""The options of every interceptor. In a flow file: a name, or a map of one name to its options."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AliasChoices, Field

from penstock.config.options import NoOptions, Options, Seconds, SizeBytes
from penstock.config.registry import Kind, declare
from penstock.limits import (
    MAX_FRAME_BYTES,
    MAX_INFLATED_BYTES,
    MAX_LINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_SEPARATED_BYTES,
)


@declare(Kind.INTERCEPTOR, "lines", "One payload a line (LF or CRLF).", available=True)
class LinesOptions(Options):
    cuts: ClassVar[bool] = True

    max_length: SizeBytes = Field(MAX_LINE_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest line, without its end. A longer one ends the stream."""

    keep_empty: bool = False
    """Make a message of an empty line too. Without it, empty lines are skipped."""


@declare(Kind.INTERCEPTOR, "separate", "Payloads with a delimiter between them.", available=True)
class SeparateOptions(Options):
    cuts: ClassVar[bool] = True

    delimiter: str = Field(
        "\n",
        min_length=1,
        max_length=64,
        validation_alias=AliasChoices("delimiter", "separator"),
    )
    """What stands between two payloads, as UTF-8. Control characters in quotes: `"\\r\\n"`, `"\\0"`."""

    max_length: SizeBytes = Field(MAX_SEPARATED_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest payload. A longer one ends the stream."""


@declare(
    Kind.INTERCEPTOR,
    "length_prefixed",
    "Each payload after its length as an unsigned 64-bit big-endian number.",
    available=True,
)
class LengthPrefixedOptions(Options):
    cuts: ClassVar[bool] = True

    max_length: SizeBytes = Field(MAX_MESSAGE_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest payload. A longer one ends the stream."""


@declare(
    Kind.INTERCEPTOR,
    "textual_length_prefixed",
    "Each payload after its length in decimal digits and a space.",
    available=True,
)
class TextualLengthPrefixedOptions(Options):
    cuts: ClassVar[bool] = True

    max_length: SizeBytes = Field(MAX_MESSAGE_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest payload. A longer one ends the stream."""


class InflateOptions(Options):
    """Shared by everything that unpacks."""

    max_inflated: SizeBytes = Field(MAX_INFLATED_BYTES, ge=1)
    """What one stream's compressed payload may unpack to. Past it the stream ends."""


@declare(Kind.INTERCEPTOR, "gzip", "Unpacks gzip on the way in, packs it out.", available=True)
class GzipOptions(InflateOptions):
    level: int = Field(6, ge=1, le=9)
    """How hard to pack on the way out: 1 is fastest, 9 smallest."""


@declare(
    Kind.INTERCEPTOR,
    "decompress",
    "Unpacks what begins with the magic bytes of a known format; passes on the rest.",
    available=True,
)
class DecompressOptions(InflateOptions):
    pass


@declare(Kind.INTERCEPTOR, "base64", "Each payload in base64.", available=True)
class Base64Options(NoOptions):
    pass


@declare(Kind.INTERCEPTOR, "zlib", "Unpacks zlib on the way in, packs it out.")
class ZlibOptions(InflateOptions):
    level: int = Field(6, ge=1, le=9)
    """How hard to pack on the way out: 1 is fastest, 9 smallest."""


@declare(Kind.INTERCEPTOR, "zstd", "Unpacks Zstandard on the way in, packs it out.")
class ZstdOptions(InflateOptions):
    level: int = Field(3, ge=1, le=19)
    """How hard to pack on the way out: 1 is fastest, 19 smallest."""


@declare(Kind.INTERCEPTOR, "snappy", "Unpacks Snappy on the way in, packs it out.")
class SnappyOptions(InflateOptions):
    pass


@declare(Kind.INTERCEPTOR, "lz4", "Unpacks LZ4 frames on the way in, packs them out.")
class Lz4Options(InflateOptions):
    pass


@declare(Kind.INTERCEPTOR, "chunk", "Cuts long payloads into pieces of a fixed size.")
class ChunkOptions(Options):
    size: SizeBytes = Field(65_536, ge=1, le=MAX_FRAME_BYTES)
    """The size of a piece; the last one may be shorter."""


@declare(Kind.INTERCEPTOR, "collect", "Joins the payloads of a stream into one, sent at its end.")
class CollectOptions(Options):
    cuts: ClassVar[bool] = True

    max_length: SizeBytes = Field(MAX_MESSAGE_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest joined payload. Past it the stream ends."""


@declare(Kind.INTERCEPTOR, "remove_empty", "Drops empty payloads.")
class RemoveEmptyOptions(NoOptions):
    pass


@declare(Kind.INTERCEPTOR, "gelf_chunking", "Puts chunked GELF datagrams back together.")
class GelfChunkingOptions(Options):
    timeout_s: Seconds = Field(5.0, gt=0, le=3600)
    """How long the first chunk waits for the rest."""

    max_length: SizeBytes = Field(MAX_MESSAGE_BYTES, ge=1, le=MAX_FRAME_BYTES)
    """The longest message put together."""


@declare(Kind.INTERCEPTOR, "ingest_ns", "Adds the nanosecond of arrival to the meta.")
class IngestNsOptions(Options):
    key: str = Field("ingest_ns", min_length=1, max_length=100)
    """The meta attribute to set."""
