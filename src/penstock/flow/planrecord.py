"""What a data directory remembers of the flow that ran on it last: `DATA/flows/NAME.json`.

A flow file may be edited between two runs. What it was can be seen from nothing else: which query read which
topic, and so how far it is read; which links have state, and what that state was made for; where messages
wait for which sink. Written, synced, before the first batch of a run; never holds options in clear, since they
may be secrets, only their digests.

Every topic that the flow reads has one *reader*: the folder of the coordinator that knows how far it is. Topics
that it reads no more stay in the record, so that one that comes back is not read twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from xxhash import xxh3_64_hexdigest

from penstock.config.flow import Component, Flow
from penstock.errors import LogError
from penstock.flow.plan import Form, Piece, Plan
from penstock.flow.topics import park_topic
from penstock.log.names import TopicName

FOLDER = "flows"
Kind = Literal["receiver", "cut", "park"]


@dataclass(frozen=True, slots=True)
class TopicUse:
    kind: Kind
    component: str  # the receiver; the link behind the cut; the sink that the park is for
    reader: str
    form: str = ""  # of a cut: a digest of how what is in it is to be read
    live: bool = True


@dataclass(frozen=True, slots=True)
class Head:
    """A link with state, and what its state depends on, as digests by name."""

    link: str
    module: str
    depends_on: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PieceRecord:
    name: str
    coordinator: str  # its name, and its folder in `DATA/engine`
    sinks: Mapping[str, str]  # cuts too; a digest of what each is
    head: Head | None = None
    last: int = -1  # what it had decided when the record was written


@dataclass(frozen=True, slots=True)
class PlanRecord:
    flow: str
    file: str
    pieces: tuple[PieceRecord, ...]
    topics: Mapping[str, TopicUse]
    coordinators: Mapping[str, str] = field(default_factory=dict)  # by piece, of all that ever ran

    def piece(self, name: str) -> PieceRecord | None:
        return next((one for one in self.pieces if one.name == name), None)


def drain_folder(coordinator: str, sink: str) -> str:
    return f"{coordinator}/drain.{sink}"


def record_of(flow: Flow, planned: Plan, coordinators: Mapping[str, str]) -> PlanRecord:
    """Of a plan; `coordinators` names them by piece, where it is not the usual name."""
    topics: dict[str, TopicUse] = {}
    pieces = []
    taken: set[str] = set()
    for piece in planned.pieces:
        coordinator = coordinators.get(piece.name, f"{flow.name}.{piece.name}")
        for source in piece.sources:
            kind: Kind = "cut" if source.internal else "receiver"
            form = digest(list(source.form.key)) if source.internal else ""
            by = piece.name if source.internal else source.entry
            topics[source.topic] = TopicUse(kind, by, coordinator, form)
        for sink in piece.sinks if flow.commit != "atomic" else ():
            if sink in piece.components:
                park = str(park_topic(flow, sink, None if sink not in taken else piece.name))
                taken.add(sink)
                topics[park] = TopicUse("park", sink, drain_folder(coordinator, sink))
        sinks = {sink: _sink(piece, sink) for sink in piece.sinks}
        pieces.append(PieceRecord(piece.name, coordinator, sinks, _head(flow, piece)))
    return PlanRecord(flow.name, str(flow.file.absolute()), tuple(pieces), topics)


def park_of(record: PlanRecord, piece: PieceRecord, sink: str) -> str:
    """The topic where messages of this piece wait for the sink."""
    reader = drain_folder(piece.coordinator, sink)
    return next(topic for topic, use in record.topics.items() if use.reader == reader)


def parks_of(record: PlanRecord, sink: str) -> list[TopicName]:
    """All in which messages wait for the sink, whichever piece they are from."""
    uses = record.topics.items()
    parks = [topic for topic, use in uses if use.kind == "park" and use.component == sink]
    return [TopicName.parse(topic) for topic in parks]


def _sink(piece: Piece, sink: str) -> str:
    component = piece.components.get(sink)
    return "" if component is None else _digest_of(component)


def _head(flow: Flow, piece: Piece) -> Head | None:
    if piece.head is None:
        return None
    depends = {
        f"the option {name}": digest(value) for name, value in piece.head.options.wire().items()
    }
    depends["what comes to it"] = digest([[one.topic, one.entry] for one in piece.sources])
    for source in piece.sources:
        depends |= _columns(flow, source.form)
    return Head(piece.head.name, piece.head.module, depends)


def _columns(flow: Flow, form: Form) -> dict[str, str]:
    """The columns that state is made of come from the codec, or from links that compute them."""
    found = {"the codec before it": digest(list(form.key[:2]))}
    for name in form.shape or ():
        if name in flow.components:
            found[f"the link {name} before it"] = _digest_of(flow.components[name])
    return found


def _digest_of(component: Component) -> str:
    codec = component.codec
    return digest(
        [
            component.module,
            component.options.wire(),
            None if codec is None else [codec.name, codec.options.wire()],
            [[one.name, one.options.wire()] for one in component.interceptors],
        ]
    )


def digest(value: object) -> str:
    return xxh3_64_hexdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


# --- The file -------------------------------------------------------------------------------------


def load_record(data_dir: Path, flow: str) -> PlanRecord | None:
    return _load(_path(data_dir, flow))


def other_records(data_dir: Path, flow: str) -> list[PlanRecord]:
    """Of the other flows that have run on this data directory."""
    paths = sorted((data_dir / FOLDER).glob("*.json"))
    found = [_load(path) for path in paths if path != _path(data_dir, flow)]
    return [one for one in found if one is not None]


def save_record(data_dir: Path, record: PlanRecord) -> None:
    """Durable when it returns; a crash leaves the old one or the new one."""
    path = _path(data_dir, record.flow)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2))
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from None


def _path(data_dir: Path, flow: str) -> Path:
    return data_dir / FOLDER / f"{flow}.json"


def _load(path: Path) -> PlanRecord | None:
    try:
        data: dict[str, Any] = orjson.loads(path.read_bytes())
        return PlanRecord(
            data["flow"],
            data["file"],
            tuple(_load_piece(one) for one in data["pieces"]),
            {name: TopicUse(**use) for name, use in data["topics"].items()},
            dict(data["coordinators"]),
        )
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise LogError(
            f"{path} cannot be read: {error}. It says what the flow was when it ran last; restore it, or "
            "remove it if the flow file has not changed since"
        ) from None


def _load_piece(data: dict[str, Any]) -> PieceRecord:
    head = data.pop("head")
    return PieceRecord(**data, head=None if head is None else Head(**head))
