"""link.meta_parser: `k=v&k2=v2 payload` becomes meta and the rest.

The head ends at the first space. It is written as in a URL's query: `&` between pairs, `%20` and `+` for a
space. What it says replaces meta of the same names; of a name that stands twice, the last counts. Names
that begin with `penstock.` are refused: they would speak to the engine.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from penstock.flow.plan import Place
from penstock.spark.rows import HIDDEN, Rows

OURS = "penstock."
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_TEXT = "CAST(payload AS string)"
_HEAD = f"{HIDDEN}head"
_PAIRS = f"{HIDDEN}pairs"


def apply(rows: Rows, place: Place) -> Rows:
    rows = rows.with_columns(place, {_HEAD: f"substring_index({_TEXT}, ' ', 1)"})
    key = "try_url_decode(substring_index(pair, '=', 1))"
    value = "try_url_decode(substring(pair, instr(pair, '=') + 1))"
    whole = "instr(pair, '=') > 1"
    pairs = f"struct({key} AS key, {value} AS value, {whole} AS whole)"
    rows = rows.with_columns(place, {_PAIRS: f"transform(split({_HEAD}, '&'), pair -> {pairs})"})
    right = f"pair.whole AND pair.value IS NOT NULL AND NOT startswith(pair.key, '{OURS}')"
    found = f"map_from_entries(transform({_PAIRS}, pair -> struct(pair.key, pair.value)))"
    return rows.go_on(
        place,
        place.routes[0],
        valid=f"octet_length({_HEAD}) < octet_length(payload) AND is_valid_utf8({_HEAD})"
        f" AND forall({_PAIRS}, pair -> coalesce({right}, false))",
        changes={
            "meta": f"map_concat(meta, {found})",
            "payload": f"substring(payload, octet_length({_HEAD}) + 2)",
        },
    )


def why_invalid(payload: bytes) -> str:
    """The same rules in Python, for the few payloads that break one."""
    head, space, _ = payload.partition(b" ")
    if not space:
        return f"byte {len(payload)}: expected a space after the meta"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start}: not UTF-8"
    at = 0
    for pair in text.split("&"):
        name, equals, _ = pair.partition("=")
        if not (name and equals):
            return f"byte {at}: expected name=value"
        if unquote_plus(name).startswith(OURS):
            return f"byte {at}: names that begin with {OURS} are Penstock's own"
        broken = _BROKEN_ESCAPE.search(pair)
        if broken:
            at += len(pair[: broken.start()].encode())
            return f"byte {at}: expected two hexadecimal digits after %"
        at += len(pair.encode()) + 1
    return "not the meta and a payload"
