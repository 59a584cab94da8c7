"""State that Python keeps, for links that go through messages one after another.

Messages are spread over STATE_BUCKETS by a hash of what they are counted by; each bucket has one value in Spark's
state store, which holds the state of all that hash to it. So Python is called a few times a batch, and not once for
every stream or key, and a tick of the clock, which every bucket gets, reaches all of them.

Rows are taken in the order of their time and then of their position: the order in which tasks hand them over
is chance, and must not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.limits import STATE_BUCKETS
from penstock.spark import clock
from penstock.spark.rows import EVENT, HIDDEN

if TYPE_CHECKING:  # where no link needs it, a start need not wait for it
    import pandas as pd

GROUP = f"{HIDDEN}group"
_BUCKET = f"{HIDDEN}bucket"
_TIME, _META = f"{HIDDEN}time_us", f"{HIDDEN}meta_json"

# What pandas would change on the way (times, maps) travels as a number and as text.
_PACKED = [f"unix_micros(time) AS {_TIME}", f"to_json(meta) AS {_META}"]
_PLAIN = [name for name in EVENT if name not in ("time", "meta")]
_UNPACKED = {
    "time": f"timestamp_micros({_TIME})",
    "meta": f"from_json({_META}, 'map<string,string>')",
}
_COLUMNS = [*_PLAIN, _TIME, _META, GROUP]
_ORDER = [_TIME, "topic", "partition", "offset"]
_STATE = StructType([StructField("state", BinaryType())])

Message = list[Any]
"""The values of `_COLUMNS`."""

TIME = _COLUMNS.index(_TIME)
IN_GROUP = _COLUMNS.index(GROUP)
PAYLOAD = _COLUMNS.index("payload")
Memory = dict[str, Any]
"""What a bucket remembers: numbers, text, bytes, lists and dictionaries with text as keys."""


class Step(Protocol):
    """Picklable."""

    def __call__(
        self, memory: Memory, messages: Iterable[Message], now_us: int
    ) -> Iterator[tuple[Message, Any]]:
        """Changes the memory; gives messages that come out, each with what is to be said of it.

        `now_us` is how far time has come: the latest of all messages and ticks that the bucket has seen.
        """


def run(rows: DataFrame, group: str, step: Step, said: StructField) -> DataFrame:
    """Events with one column more. `group` is SQL: what messages are counted by."""
    is_tick = f"topic = '{clock.TOPIC}'"
    own = f"array(CAST(pmod(xxhash64({GROUP}), {STATE_BUCKETS}) AS int))"
    all_of_them = f"sequence(0, {STATE_BUCKETS - 1})"
    packed = rows.selectExpr(*_PLAIN, *_PACKED, f"{group} AS {GROUP}")
    spread = packed.selectExpr(
        "*", f"explode(CASE WHEN {is_tick} THEN {all_of_them} ELSE {own} END) AS {_BUCKET}"
    )
    schema = StructType([spread.schema[name] for name in _COLUMNS])
    schema = StructType([StructField(one.name, one.dataType) for one in schema]).add(said)
    found = spread.groupBy(_BUCKET).applyInPandasWithState(
        Stepping(step, said.name), schema, _STATE, "append", GroupStateTimeout.NoTimeout
    )
    return found.selectExpr(
        *(f"{_UNPACKED.get(name, name)} AS {name}" for name in EVENT), said.name
    )


@dataclass(frozen=True, slots=True)
class Stepping:
    """In a task: one bucket of a batch."""

    step: Step
    said: str

    def __call__(
        self, key: Any, frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        whole = pd.concat(list(frames)).sort_values(_ORDER, kind="stable")
        stored = msgpack.unpackb(state.get[0], strict_map_key=False) if state.exists else {}
        now_us = max(stored.get("now", 0), int(whole[_TIME].max()))
        memory = stored.get("memory", {})
        events = whole[whole["topic"] != clock.TOPIC]
        messages = [_plain(row) for row in events[_COLUMNS].itertuples(index=False)]
        came = list(self.step(memory, messages, now_us))
        if memory:
            state.update((msgpack.packb({"now": now_us, "memory": memory}),))
        elif state.exists:
            state.remove()
        yield pd.DataFrame(
            [[*message, said] for message, said in came], columns=[*_COLUMNS, self.said]
        )


def _plain(row: Iterable[Any]) -> Message:
    """Without types of NumPy's."""
    return [one.item() if hasattr(one, "item") else one for one in row]
