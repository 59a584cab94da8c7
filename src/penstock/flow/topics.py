"""The topics of a flow: made before anything runs, as the flow file wants them."""

from __future__ import annotations

from dataclasses import replace

from xxhash import xxh3_64_hexdigest

from penstock import logs
from penstock.config.flow import Flow
from penstock.config.model import RetentionOptions, TopicOptions
from penstock.config.names import name_from
from penstock.flow.plan import Plan
from penstock.limits import MAX_NAME_CHARS
from penstock.log.interface import Log, Retention, TopicConfig, differences
from penstock.log.names import TopicName

log = logs.get("flow")


def make_topics(engine: Log, flow: Flow, planned: Plan) -> None:
    """Those that the flow itself writes to."""
    usual = flow.topic_options
    own = flow.topics.get(flow.dead_letter, TopicOptions())
    letters = own.model_copy(update={"partitions": 1})
    make_topic(engine, TopicName.parse(flow.dead_letter), letters)
    for cut in planned.cuts:
        make_passage(engine, TopicName.parse(cut.topic), usual(cut.topic))
    for one in flow.components.values():
        if one.module == "sink.topic":
            topic = str(one.options.topic)  # type: ignore[attr-defined]
            wanted = usual(topic)
            asked = one.options.partitions  # type: ignore[attr-defined]
            if asked is not None:
                wanted = wanted.model_copy(update={"partitions": asked})
            make_topic(engine, TopicName.parse(topic), wanted)


def make_topic(engine: Log, name: TopicName, options: TopicOptions) -> int:
    """Make a topic, or give one that is there what the flow asks for; it keeps what the flow says nothing
    of, and all its partitions. Says how many it has. TopicExists if it cannot be as the flow asks."""
    if name not in engine.topics(name.namespace):
        wanted = _config(options, TopicConfig())
        engine.create(name, wanted)
        return wanted.partitions
    present = engine.config(name)
    wanted = _config(options, present)
    if wanted.ids == present.ids:
        most = 1 if present.ids == "producer" else max(wanted.partitions, present.partitions)
        wanted = replace(wanted, partitions=most)
    if engine.create(name, wanted):
        log.info("topic changed", topic=str(name), settings=differences(present, wanted))
    return wanted.partitions


def make_passage(engine: Log, name: TopicName, options: TopicOptions) -> None:
    """Make a cut or a park: what is in it goes once it was read, and not before."""
    kept = None
    if name in engine.topics(
        name.namespace
    ):  # one that was made with a retention keeps it, without effect
        present = engine.config(name).retention
        kept = RetentionOptions(age_s=present.age_s, size_bytes=present.size_bytes)
    for partition in range(
        make_topic(engine, name, options.model_copy(update={"retention": kept}))
    ):
        engine.trim(name, partition, 0)


def park_topic(flow: Flow, sink: str, piece: str | None = None) -> TopicName:
    """Where messages wait for a sink.

    `piece` is given for every query but the first that feeds the sink: each has a park of its own.
    """
    return topic_beside(flow, sink, "park" if piece is None else f"{piece}.park")


def topic_beside(flow: Flow, component: str, purpose: str) -> TopicName:
    """A topic of a component's. Names that topics do not allow are told apart by a hash."""
    wanted = f"{flow.name}.{component}.{purpose}"
    name = name_from(wanted)
    if name != wanted:
        name = f"{name[: MAX_NAME_CHARS - 9]}-{xxh3_64_hexdigest(wanted.encode())[:8]}"
    return TopicName.parse(name)


def _config(options: TopicOptions, base: TopicConfig) -> TopicConfig:
    kept = options.retention
    return replace(
        base,
        partitions=options.partitions or base.partitions,
        ids=options.ids if "ids" in options.model_fields_set else base.ids,
        compression=options.compression or base.compression,
        retention=base.retention if kept is None else Retention(kept.age_s, kept.size_bytes),
        segment_bytes=options.segment_bytes or base.segment_bytes,
        segment_age_s=options.segment_age_s or base.segment_age_s,
    )
