"""link.compressor: each payload packed, or unpacked, by itself."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial

import lz4.frame

from penstock.errors import InvalidMessage
from penstock.flow.plan import Place
from penstock.interceptors.compressed import unpack_whole
from penstock.interceptors.snappy import pack as pack_snappy
from penstock.links.payload import CompressorOptions
from penstock.spark import bridges
from penstock.spark.rows import Rows
from penstock.spark.scope import PACKED, Scope

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_GZIP_BITS = 16 + zlib.MAX_WBITS


def apply(rows: Rows, place: Place, options: CompressorOptions, scope: Scope) -> Rows:
    change = unpacker(options) if options.direction == "decompress" else packer(options)
    function = scope.function("change", place, lambda: bridges.changer(change, InvalidMessage))
    rows = rows.with_function(place, PACKED, function, "payload")
    # Only unpacking can fail, but a payload must never be null.
    valid = f"{PACKED} IS NOT NULL"
    return rows.go_on(place, place.routes[0], valid=valid, changes={"payload": PACKED})


def unpacker(options: CompressorOptions) -> Callable[[bytes], bytes]:
    kind, limit = options.algorithm, options.max_inflated
    return partial(_unpack, kind, limit)


def _unpack(kind: str, limit: int, payload: bytes) -> bytes:
    return unpack_whole("compressor", kind, payload, limit)


def packer(options: CompressorOptions) -> Callable[[bytes], bytes]:
    level = options.level
    match options.algorithm:
        case "gzip":
            return partial(_deflate, -1 if level is None else level, _GZIP_BITS)
        case "zlib":
            return partial(_deflate, -1 if level is None else level, zlib.MAX_WBITS)
        case "zstd":
            return zstd.compress if level is None else partial(_zstd, level)
        case "lz4":
            return partial(lz4.frame.compress, compression_level=level or 0)
        case "snappy":
            return pack_snappy


def _deflate(level: int, bits: int, payload: bytes) -> bytes:
    return zlib.compress(payload, level, bits)


def _zstd(level: int, payload: bytes) -> bytes:
    packed: bytes = zstd.compress(payload, level)
    return packed


def why_not(options: CompressorOptions, payload: bytes) -> str:
    try:
        unpacker(options)(payload)
    except InvalidMessage as error:
        return str(error).removeprefix("compressor: ")
    return "it cannot be packed"
