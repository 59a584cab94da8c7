"""What a flow becomes before it runs: pieces, places and routes. Data only; all of it can be pickled.

A *piece* is one streaming query with one coordinator. It reads topics, begins with at most one link that
remembers (its *head*), and ends at sinks and at *cuts*: internal topics that the next pieces read.

Inside a piece every row stands at a *place*: a link that has work to do, a sink, a cut, or an end with a
status. A component is several places if rows come to it as different copies, or in different forms.
Links that only decide where a row goes have no place: they are folded into the *routes* between places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import orjson

from penstock.config.flow import Component, Stage
from penstock.status import Status


@dataclass(frozen=True, slots=True)
class Form:
    """How to read a payload: the codec in force, and what has been wrapped around it since.

    `shape` stands for the columns that a link computed last: its name, and the form it computed them from.
    What they are shows when that link is compiled, and counts for more than what the codec's options say.
    """

    codec: Stage | None = None
    wraps: tuple[str, ...] = ()
    shape: tuple[str, ...] | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The same for forms that are the same."""
        codec, options = "binary", "{}"
        if self.codec is not None and self.codec.name != "binary":
            codec = self.codec.name
            options = orjson.dumps(self.codec.options.wire()).decode()
        return (codec, options, *(self.shape or ()), *self.wraps)

    @property
    def inside(self) -> Form:
        """What a link sees that works on values: where something is wrapped around, mere bytes."""
        return Form() if self.wraps else self

    def wrapped(self, wrap: str) -> Form:
        return Form(self.codec, (*self.wraps, wrap), self.shape)

    def unwrapped(self, wrap: str) -> Form:
        """Without the outermost wrap. What came in wrapped has the receiver's codec inside."""
        kept = self.wraps[:-1] if self.wraps[-1:] == (wrap,) else self.wraps
        return Form(self.codec, kept, self.shape)

    def computed(self, node: str) -> Form:
        """What a link makes of it that computes columns."""
        return Form(self.inside.codec, shape=(node, *self.inside.key))

    def __str__(self) -> str:
        return " in ".join([self.key[0], *self.wraps])


@dataclass(frozen=True, slots=True)
class Turn:
    """Which copy a row is: `node` made `copies`, this one goes to `target`."""

    node: str
    target: str
    copies: int


@dataclass(frozen=True, slots=True)
class Vanish:
    """The row has done its duty."""


@dataclass(frozen=True, slots=True)
class To:
    place: int


@dataclass(frozen=True, slots=True)
class Pick:
    """One of the cases: by a meta attribute, by the peer that took the message in, or by turns."""

    node: str
    by: Literal["meta", "peer", "turn"]
    key: str | None  # the attribute
    cases: tuple[tuple[str, Route], ...]
    other: Route


@dataclass(frozen=True, slots=True)
class Copy:
    """All of them."""

    node: str
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Hashed:
    """`replicas` of the targets, by a hash of each target's name and of the event's key."""

    node: str
    hash_key: str | None  # a meta attribute; None: the payload
    replicas: int
    targets: tuple[tuple[str, Route], ...]


Route: TypeAlias = Vanish | To | Pick | Copy | Hashed


def leads_to(route: Route) -> set[int]:
    """Every place that rows on this route may come to."""
    match route:
        case Vanish():
            return set()
        case To(place):
            return {place}
        case Pick():
            return leads_to(route.other).union(*(leads_to(one) for _, one in route.cases))
        case Copy():
            return set().union(*map(leads_to, route.routes))
        case Hashed():
            return set().union(*(leads_to(one) for _, one in route.targets))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row can stand. `kind` says what happens to it there.

    link: the link `node` works on it, and it goes on along `routes` (a fanout has several to choose from);
    rows it cannot read go to `invalid`, rows it fails on to `failed`. encode: the same, into the form that the sink `node` wants.
    sink, cut: it leaves the piece. end: it ended at `node` with `status`. The head of a piece, if it has
    one, is the link at which its rows start; what it makes of them shows only when they arrive there.
    """

    index: int
    kind: Literal["link", "encode", "sink", "cut", "end"]
    node: str  # a component; of a cut: its sink's name
    form: Form
    path: tuple[Turn, ...] = ()
    routes: tuple[Route, ...] = ()
    invalid: int | None = None
    failed: int | None = None
    status: Status | None = None
    into: Form | None = None

    @property
    def is_last(self) -> bool:
        return self.kind in ("sink", "cut", "end")


@dataclass(frozen=True, slots=True)
class Source:
    """A topic that a piece reads. `entry` is the receiver; `internal` the side of a cut."""

    topic: str
    entry: str
    form: Form
    internal: bool = False


CUT = "cut:"
"""Begins the name of a cut's sink: no component's name holds a colon."""


def cut_node(sink: str) -> str:
    """The link that stands behind a cut, by the name of the cut's sink."""
    return sink.removeprefix(CUT).partition(":")[0]


def cut_topic(sink: str) -> str:
    """The topic of a cut, by the name of its sink."""
    return sink.removeprefix(CUT).partition(":")[2]


@dataclass(frozen=True, slots=True)
class Cut:
    """An internal topic before the stateful link `node`, written by the pieces before it."""

    sink: str  # what rows that go there have as `sink`: `cut:NODE:TOPIC`
    topic: str
    node: str
    entry: str  # whose events it holds, where the link tells its inputs apart


@dataclass(frozen=True, slots=True)
class Retry:
    """What link.buffer asks of the sinks below it."""

    buffer: str
    max_retry: int
    backoff_min_s: float
    backoff_max_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """One streaming query. `start` says where rows go first: those of a topic, or those of the head."""

    name: str
    flow: str
    sources: tuple[Source, ...]
    head: Component | None
    start: tuple[tuple[str, Route], ...]  # by topic; of a piece with a head: one, to the head
    places: tuple[Place, ...]
    components: dict[str, Component]
    sinks: tuple[str, ...]  # components, in the order of the file, then cuts
    cuts: tuple[Cut, ...]
    retries: dict[str, Retry]  # by sink
    timeouts_s: dict[str, float]  # by sink: how long the copies above wait for it, if not for ever
    aside: frozenset[str] = (
        frozenset()
    )  # of a piece with a head: the components that are not behind it

    def place_of(self, sink: str) -> list[Place]:
        return [one for one in self.places if one.kind in ("sink", "cut") and one.node == sink]

    @property
    def entrance(self) -> Place:
        """Of a piece with a head: the head's place."""
        [(_, route)] = self.start
        assert isinstance(route, To)
        return self.places[route.place]

    def end_at(self, node: str, status: Status) -> Place:
        """Where rows end at a link with this status; of a head only."""
        [found] = [
            one
            for one in self.places
            if (one.kind, one.node, one.status, one.path) == ("end", node, status, ())
        ]
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    flow: str
    pieces: tuple[Piece, ...]  # each after those that write what it reads
    cuts: tuple[Cut, ...]
