"""The chain of a stream's interceptors, in the order of the configuration.

The first interceptors work on the stream as one run of bytes, up to and including the first that
cuts it into payloads; those after it work on each payload by itself. Where the input is `framed`,
every chunk being a message (a datagram, an HTTP body), all of them work on each by itself.

With no framing interceptor on a stream, a payload is whatever one read gave: where one ends and the
next begins is then up to the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

import penstock.interceptors.options  # noqa: F401  (declares the options of every interceptor)
from penstock.config.options import Options
from penstock.config.registry import REGISTRY, Kind
from penstock.config.spelling import nearest
from penstock.errors import ConfigError, InvalidMessage
from penstock.interceptors.base64 import Base64, EachBase64
from penstock.interceptors.compressed import Decompress, Gzip
from penstock.interceptors.delimited import Lines, Separate
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.prefixed import LengthPrefixed, TextualLengthPrefixed
from penstock.interceptors.stage import Each, Stage, join
from penstock.message import Buffer

Spec = tuple[str, Options | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Built:
    """How an interceptor is made, for a stream and for payloads that stand by themselves."""

    stage: type[Stage]
    each: type[Each] = Each


_STAGES: Final = {
    "lines": _Built(Lines),
    "separate": _Built(Separate),
    "length_prefixed": _Built(LengthPrefixed),
    "textual_length_prefixed": _Built(TextualLengthPrefixed),
    "gzip": _Built(Gzip),
    "decompress": _Built(Decompress),
    "base64": _Built(Base64, EachBase64),
}


class Chain:
    """One stream's interceptors. Made by `chain_factory`.

    On a stream, an error is the end: every later call raises it again. Payloads that came before it
    in the same chunk are returned first, and the error raised by the next call; a receiver that
    wants to close at once looks at `failed` after each `feed`.

    On framed input each chunk is taken whole or not at all, nothing is kept between chunks, and the
    chain can be used again after an error.
    """

    __slots__ = ("_framed", "_stages", "cuts", "failed")

    def __init__(self, stages: list[Stage], framed: bool, cuts: bool) -> None:
        self._stages = stages
        self._framed = framed
        self.cuts = cuts  # one of them says where payloads begin and end
        self.failed: InvalidMessage | None = None

    @property
    def is_identity(self) -> bool:
        """Whether every chunk is a payload as it is."""
        return not self._stages

    @property
    def held_bytes(self) -> int:
        """Bytes kept for payloads that have not come to their end."""
        return sum(stage.held_bytes for stage in self._stages)

    def feed(self, data: Buffer) -> Payloads:
        """The payloads that `data` completes. The buffer may be overwritten afterwards."""
        if self.failed is not None:
            raise self.failed
        if not self._framed and not len(data):
            return NOTHING
        if not self._stages:
            return Payloads(bytes(data))
        return self._run(self._stages, Payloads(data))

    def _run(self, stages: Iterable[Stage], payloads: Payloads) -> Payloads:
        try:
            for stage in stages:
                if not payloads.count:
                    break
                payloads = stage.feed(payloads)
                if stage.failed is not None:
                    # A later stage fails on an earlier payload than those before it did.
                    self.failed = stage.failed
                    if self._framed:
                        stage.failed = None
                        raise self.failed
        except InvalidMessage as error:
            self.failed = None if self._framed else error
            raise
        return payloads

    def flush(self) -> Payloads:
        """The stream ended: its last payloads, or InvalidMessage if it ended inside one."""
        if self.failed is not None:
            raise self.failed
        rest = NOTHING
        for index, stage in enumerate(self._stages):
            try:
                rest = join([rest, stage.flush()])
            except InvalidMessage as error:
                self.failed = error
                raise
            rest = self._run(self._stages[index + 1 : index + 2], rest)
            if self.failed is not None:
                raise self.failed
        return rest

    def wrap(self, payloads: Payloads) -> Payloads:
        """The way out. On a stream, bytes to send; framed, one message for each payload.

        InvalidMessage if a payload cannot be sent so that it arrives as it is (a line feed within
        a line); then none of them is, and the chain can be used again.
        """
        for stage in reversed(self._stages):
            if not payloads.count:
                break
            payloads = stage.wrap(payloads)
        return payloads

    def finish(self) -> bytes:
        """The way out ends: the last bytes to send on a stream."""
        rest = b""
        for stage in reversed(self._stages):
            wrapped = bytes(stage.wrap(Payloads(rest)).blob) if rest else b""
            rest = wrapped + stage.finish()
        return rest


def chain_factory(specs: Iterable[Spec], framed: bool) -> Callable[[], Chain]:
    """Checks the configuration once; each call of the result makes the chain of a new stream."""
    makers: list[Callable[[], Stage]] = []
    each = framed
    cuts = False
    for name, given in specs:
        built, options = _find(name, given)
        make = partial(built.stage, **options)
        makers.append(partial(_each, built.each, make, framed) if each else make)
        cuts = cuts or built.stage.frames
        each = framed or cuts
    return lambda: Chain([make() for make in makers], framed, cuts)


def _each(each: type[Each], make: Callable[[], Stage], framed: bool) -> Stage:
    return each(make(), framed)


def _find(name: str, given: Options | Mapping[str, Any]) -> tuple[_Built, dict[str, Any]]:
    """The stage behind a name, and its options, with every default filled in."""
    declaration = REGISTRY.find(Kind.INTERCEPTOR, name)
    if declaration is None:
        near = nearest(name, REGISTRY.names(Kind.INTERCEPTOR))
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"there is no interceptor {name!r}{hint}")
    built = _STAGES.get(declaration.name)
    if built is None:
        raise ConfigError(f"the interceptor {declaration.name!r} is not there yet in this version")
    if isinstance(given, Options):
        return built, dict(given)
    try:
        return built, dict(declaration.options.model_validate(dict(given)))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"interceptor {name!r}, {where}: {problem['msg']}") from None
