"""Topics with `ids: producer`: what writes to them must bring ids that rise, or nothing would be stored."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.flow import Component
from penstock.config.model import TopicOptions
from penstock.config.problems import Mark, Problems, quoted
from penstock.config.wiring import Defined


def check_ids(
    topics: Mapping[str, TopicOptions],
    dead_letter: str,
    dead_letter_mark: Mark | None,
    defined: Mapping[str, Defined],
    problems: Problems,
) -> None:
    numbered = {name for name, one in topics.items() if one.ids == "producer"}
    if dead_letter in numbered:
        problems.add(
            dead_letter_mark or Mark(1, 1),
            f"dead letters cannot go to {quoted(dead_letter)}, which has `ids: producer`",
            "they have no ids that rise",
        )
    for name, one in defined.items():
        if one.component is not None and written_by(one.component) in numbered:
            reason = lacks_ids(one.component)
            if reason is not None:
                problems.add(
                    one.mark, f"{quoted(name)}: {reason}", "give it a topic without `ids: producer`"
                )


def written_by(one: Component) -> str | None:
    """The topic that a component writes to, if any."""
    if one.module == "sink.topic":
        return str(one.options.topic)  # type: ignore[attr-defined]
    return one.topic if one.is_source and one.module != "receiver.topic" else None


def lacks_ids(one: Component) -> str | None:
    """Why a component cannot write to a topic with ids of its producers; None if it can."""
    if one.options.carries_ids:
        return None
    return (
        f"the topic {quoted(str(written_by(one)))} has `ids: producer`, and {one.module} cannot give a "
        "message the id that it needs"
    )
