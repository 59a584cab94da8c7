"""What became of a flow since it ran last, and what carrying on with it as it is now would lose.

Compatible, and carried on from where they were: links, sinks and receivers that are new; options that changed; sinks
and receivers that are gone and have nothing left to do; queries that are put together in another way, since
what is remembered is how far each *topic* is read. Everything else is a `Loss`, named, with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.config.flow import Flow
from penstock.errors import WouldLose
from penstock.flow.decisions import Decisions
from penstock.flow.plan import CUT, Plan
from penstock.flow.planrecord import (
    PieceRecord,
    PlanRecord,
    TopicUse,
    drain_folder,
    load_record,
    other_records,
    record_of,
)
from penstock.flow.transaction import PARKED
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName

FINISH_FIRST = "run the flow as it was before with `penstock run FILE --once`"


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that would not be carried on. `owed` and `park` say what to give up if that is accepted."""

    component: str
    what: str
    instead: str
    owed: tuple[str, str] | None = None  # a coordinator's folder, and the target in its decisions
    park: str | None = None

    def __str__(self) -> str:
        return f"{self.component}: {self.what}; to keep it, {self.instead}"


@dataclass(frozen=True, slots=True)
class Changes:
    """From one run to the next. `before` is None when the flow has not run here yet."""

    before: PlanRecord | None
    now: PlanRecord
    losses: tuple[Loss, ...] = ()
    others: tuple[PlanRecord, ...] = ()  # flows that this one seems to have been

    def check(self) -> None:
        if self.losses:
            raise WouldLose(
                f"{len(self.losses)} thing{'s' * (len(self.losses) != 1)} would be lost with the flow as it is "
                "now; nothing was started. To run it all the same, give --accept-loss",
                [str(one) for one in self.losses],
            )


class Standing:
    """How far things are, from the files of the data directory. Changes none of them."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._log = EmbeddedLog(data_dir)
        self._known: dict[str, Decisions | None] = {}

    def decisions(self, reader: str) -> Decisions | None:
        if reader not in self._known:
            self._known[reader] = Decisions.peek(self.data_dir / "engine" / reader)
        return self._known[reader]

    def unread(self, topic: str, reader: str) -> int:
        name = TopicName.parse(topic)
        decisions = self.decisions(reader)
        if decisions is None or name not in self._log.topics(name.namespace):
            return 0
        frontiers = decisions.frontiers
        return sum(
            max(0, part.end - max(part.begin, frontiers.get((topic, part.partition), 0)))
            for part in self._log.describe(name).partitions
        )


def find_changes(flow: Flow, planned: Plan) -> Changes:
    before = load_record(flow.data_dir, flow.name)
    standing = Standing(flow.data_dir)
    others = [one for one in other_records(flow.data_dir, flow.name) if _was(one, flow)]
    losses = [loss for one in others for loss in _renamed(one, standing)]
    found = _Found(flow, planned, before or PlanRecord(flow.name, "", (), {}), standing)
    now = found.now()
    losses += found.losses
    return Changes(before, now, tuple(losses), tuple(others))


def _was(other: PlanRecord, flow: Flow) -> bool:
    """Whether it is likely the same flow under an older name: it had this file, or one that is gone."""
    return other.file == str(flow.file.absolute()) or not Path(other.file).exists()


def _renamed(other: PlanRecord, standing: Standing) -> Iterator[Loss]:
    waiting = sum(
        standing.unread(topic, use.reader) for topic, use in other.topics.items() if use.live
    )
    owed = sum(
        len(decisions.owed)
        for piece in other.pieces
        if (decisions := standing.decisions(piece.coordinator)) is not None
    )
    if waiting or owed:
        yield Loss(
            f"the flow {other.flow}",
            f"it ran here from {other.file}, which is now gone or another flow, and has "
            f"{_messages(waiting)} not carried through",
            f"give the flow its name again (`name: {other.flow}`), or {FINISH_FIRST}",
        )


@dataclass(slots=True)
class _Found:
    flow: Flow
    planned: Plan
    before: PlanRecord
    standing: Standing
    losses: list[Loss] = field(default_factory=list)

    def now(self) -> PlanRecord:
        """The record of the new plan: coordinators that must not go on with their numbers get new names."""
        usual = record_of(self.flow, self.planned, self.before.coordinators)
        renewed = {piece.name for piece in self.before.pieces if self._log_is_gone(piece)}
        renewed |= {piece.name for piece in usual.pieces if self._starts_anew(piece)}
        for piece in self.before.pieces:
            self._gone_heads(piece, usual)
            self._owed(piece, usual)
        known = dict(self.before.coordinators)
        names = {
            piece.name: _next(piece.coordinator) if piece.name in renewed else piece.coordinator
            for piece in usual.pieces
        }
        now = record_of(self.flow, self.planned, known | names)
        for topic, use in self.before.topics.items():
            if use.live:
                self._topic(topic, use, now)
        past = {
            topic: replace(use, live=False)
            for topic, use in self.before.topics.items()
            if topic not in now.topics
        }
        return replace(now, topics={**now.topics, **past}, coordinators=known | names)

    # --- Each kind of loss ----------------------------------------------------------------------

    def _log_is_gone(self, piece: PieceRecord) -> bool:
        readers = [use.reader for use in self.before.topics.values() if use.live]
        drains = [one for one in readers if one.startswith(f"{piece.coordinator}/")]
        decisions = self.standing.decisions(piece.coordinator)
        gone = [one for one in (piece.coordinator, *drains) if not self.standing.decisions(one)]
        if not gone and decisions is not None and decisions.last >= piece.last:
            return False
        path = self.standing.data_dir / "engine" / (gone or [piece.coordinator])[0] / "decisions"
        is_gone = "is gone" if gone else "is older than the flow's last run"
        self.losses.append(
            Loss(
                piece.name,
                f"the decision log {path} {is_gone}: what sinks were given is not known, and messages may "
                "come to them again",
                "restore the file",
            )
        )
        return True

    def _starts_anew(self, piece: PieceRecord) -> bool:
        """A query's numbers are Spark's where it has state: new state, new numbers."""
        before = self.before.piece(piece.name)
        if before is None:
            return piece.head is not None and piece.name in self.before.coordinators
        if before.head is None or piece.head is None:
            return before.head is not piece.head
        changed = _differing(before.head.depends_on, piece.head.depends_on)
        if before.head.module != piece.head.module:
            changed = [f"it was a {before.head.module}"]
        if changed and self._has_decided(before):
            self.losses.append(
                Loss(
                    piece.head.link,
                    f"what it remembers does not fit any more, since {_and(changed)} changed",
                    "leave it as it was, or give the changed link a name of its own beside it",
                )
            )
        return bool(changed)

    def _gone_heads(self, piece: PieceRecord, now: PlanRecord) -> None:
        if piece.head is not None and now.piece(piece.name) is None and self._has_decided(piece):
            what = f"the link is gone, and with it what it remembers ({piece.head.module})"
            self.losses.append(Loss(piece.head.link, what, "leave it in the flow"))

    def _has_decided(self, piece: PieceRecord) -> bool:
        decisions = self.standing.decisions(piece.coordinator)
        return decisions is not None and decisions.last >= 0

    def _owed(self, piece: PieceRecord, now: PlanRecord) -> None:
        sinks = {name: what for one in now.pieces for name, what in one.sinks.items()}
        folders = [piece.coordinator]
        folders += [drain_folder(piece.coordinator, sink) for sink in piece.sinks]
        for folder in folders:
            decisions = self.standing.decisions(folder)
            for target, owed in {} if decisions is None else decisions.owed.items():
                if target.endswith(PARKED) or target.startswith(CUT):
                    continue  # topics of ours: they are there
                if sinks.get(target) == piece.sinks.get(target):
                    continue
                count = len(owed)
                is_gone = "it is gone" if target not in sinks else "its options changed"
                self.losses.append(
                    Loss(
                        target,
                        f"{is_gone}, and {count} decided batch{'es' * (count != 1)} "
                        f"{'is' if count == 1 else 'are'} not committed there yet",
                        FINISH_FIRST,
                        owed=(folder, target),
                    )
                )

    def _topic(self, topic: str, use: TopicUse, now: PlanRecord) -> None:
        then = now.topics.get(topic)
        count = self.standing.unread(topic, use.reader)
        if not count or (then is not None and (then.kind, then.form) == (use.kind, use.form)):
            return
        instead = FINISH_FIRST
        if use.kind == "receiver":
            what = f"no receiver fills {topic} any more, which has {_messages(count)} not carried through"
            instead += f"; if it has a new name, give it `topic: {topic}`"
        elif use.kind == "cut":
            is_gone = "is read no more" if then is None else "is to be read as something else"
            what = f"the topic {topic} before it {is_gone}, with {_messages(count)} in it"
        else:
            why = "nothing is brought from there with `commit: atomic`"
            if use.component not in self.flow.components:
                why = "the sink is gone"
            what = f"{_messages(count)} for it {'waits' if count == 1 else 'wait'} in {topic}, and {why}"
        self.losses.append(
            Loss(use.component, what, instead, park=topic if use.kind == "park" else None)
        )


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys([*before, *now])
    return [name for name in names if before.get(name) != now.get(name)]


def _next(coordinator: str) -> str:
    base, _, number = coordinator.partition("~")
    return f"{base}~{int(number or 1) + 1}"


def _messages(count: int) -> str:
    return f"{count:,} message{'s' * (count != 1)}"


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
