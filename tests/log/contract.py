"""What every engine must do. An engine's test module subclasses `LogContract` and gives a `log`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.errors import (
    LogClosed,
    LogError,
    LogLocked,
    NeedsId,
    NoSuchTopic,
    OutOfOrder,
    PenstockError,
    TopicExists,
)
from penstock.log import SCHEMA, Appended, Log, Reader, Retention, TopicConfig, TopicName, Writer
from penstock.message import Batch, Source

TOPIC = TopicName.parse("orders.web")
NUMBERED = TopicName.parse("orders.ids")


def batch(*payloads: bytes, stream: str = "~c", seq: int = 0, **more: object) -> Batch:
    return Batch.of("web", stream, seq, list(payloads), **more)  # type: ignore[arg-type]


def rows(reader: Reader, offset: int = 0, **more: int) -> pa.Table:
    return pa.Table.from_batches(list(reader.read(offset, **more)), SCHEMA).unify_dictionaries()


def payloads(reader: Reader, offset: int = 0, **more: int) -> list[bytes]:
    found: list[bytes] = rows(reader, offset, **more).column("payload").to_pylist()
    return found


def some_rows(*payloads: bytes, streams: tuple[str, ...] = ("s",), seq: int = 0) -> pa.RecordBatch:
    """Rows for `append_rows`, of several streams in turn."""
    n = len(payloads)
    columns = {
        "time": pa.array([1_000_000 + i for i in range(n)], pa.timestamp("us", "UTC")),
        "peer": pa.array(["web"] * n),
        "stream": pa.array([streams[i % len(streams)] for i in range(n)]),
        "seq": pa.array(range(seq, seq + n), pa.int64()),
        "key": pa.array([None if i % 2 else b"k%d" % i for i in range(n)], pa.binary()),
        "meta": pa.array([[("i", str(i))] for i in range(n)], pa.map_(pa.string(), pa.string())),
        "payload": pa.array(payloads, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


class _Waiter:
    def __init__(self) -> None:
        self.stored_at: dict[int, int] = {}
        self.errors: dict[int, PenstockError] = {}

    def stored(self, seq: int, offset: int) -> None:
        self.stored_at[seq] = offset

    def refused(self, seq: int, error: PenstockError) -> None:
        self.errors[seq] = error


class LogContract:
    @pytest.fixture
    def log(self) -> Iterator[Log]:
        raise NotImplementedError

    @pytest.fixture
    def writer(self, log: Log) -> Iterator[Writer]:
        log.create(TOPIC, TopicConfig())
        writer = log.writer(TOPIC, 0)
        yield writer
        writer.close()

    def reopen(self, log: Log, writer: Writer) -> Writer:
        writer.close()
        return log.writer(TOPIC, 0)

    # --- Topics ---

    def test_a_topic_is_made_once_and_listed(self, log: Log) -> None:
        assert log.create(TOPIC, TopicConfig(partitions=2))
        assert not log.create(TOPIC, TopicConfig(partitions=2))
        assert log.topics() == [TOPIC]
        assert log.config(TOPIC).partitions == 2

    def test_partitions_may_only_grow(self, log: Log) -> None:
        log.create(TOPIC, TopicConfig(partitions=2))
        assert log.create(TOPIC, TopicConfig(partitions=3))
        with pytest.raises(TopicExists, match="only grow"):
            log.create(TOPIC, TopicConfig(partitions=1))
        assert len(log.describe(TOPIC).partitions) == 3

    def test_settings_change_and_stay_so(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a")])
        changed = TopicConfig(
            partitions=2,
            compression="zstd",
            retention=Retention(3600.0, 1 << 30),
            segment_bytes=1 << 26,
            segment_age_s=60.0,
        )
        assert log.create(TOPIC, changed)
        assert not log.create(TOPIC, changed)
        assert log.config(TOPIC) == changed
        assert log.create(TOPIC, TopicConfig(partitions=2))
        assert log.config(TOPIC).retention == Retention()
        again = self.reopen(log, writer)
        assert again.append([batch(b"b")]) == [Appended(1, 1)]
        again.close()

    def test_ids_never_change(self, log: Log) -> None:
        log.create(TOPIC, TopicConfig(compression="lz4"))
        with pytest.raises(TopicExists, match="cannot become `ids: producer`"):
            log.create(TOPIC, TopicConfig(ids="producer"))
        log.create(NUMBERED, TopicConfig(ids="producer"))
        with pytest.raises(TopicExists, match="cannot become `ids: log`"):
            log.create(NUMBERED, TopicConfig())
        with pytest.raises(TopicExists, match="exactly one partition"):
            log.create(NUMBERED, TopicConfig(ids="producer", partitions=2))
        assert log.config(NUMBERED) == TopicConfig(ids="producer")

    def test_named_streams_stay_where_they_are_when_a_topic_grows(self, log: Log) -> None:
        log.create(TOPIC, TopicConfig(partitions=2))
        assert log.homes(TOPIC) == 2
        log.create(TOPIC, TopicConfig(partitions=5))
        assert log.homes(TOPIC) == 2

    def test_a_topic_that_does_not_exist_is_named(self, log: Log) -> None:
        with pytest.raises(NoSuchTopic, match="no topic nope"):
            log.reader(TopicName.parse("nope"), 0)
        log.create(TOPIC, TopicConfig())
        with pytest.raises(NoSuchTopic, match="no partition 7"):
            log.reader(TOPIC, 7)

    def test_a_deleted_topic_is_gone_and_its_name_is_free(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a")])
        with pytest.raises(LogLocked):
            log.delete(TOPIC)
        writer.close()
        log.delete(TOPIC)
        assert log.topics() == []
        assert log.create(TOPIC, TopicConfig())
        assert payloads(log.reader(TOPIC, 0)) == []

    def test_there_is_one_writer_and_the_error_says_who(self, log: Log, writer: Writer) -> None:
        with pytest.raises(LogLocked, match="process"):
            log.writer(TOPIC, 0)
        self.reopen(log, writer).close()

    # --- Append and read ---

    def test_what_is_appended_is_read_back_whole(self, log: Log, writer: Writer) -> None:
        first = batch(b"a", b"", b"\xff\x00", meta={"k": "v", "ü": "€"}, keys=[b"x", None, b""])
        second = batch(b"d", stream="~other", seq=7)
        assert writer.append([first, second]) == [Appended(0, 3), Appended(3, 1)]
        table = rows(log.reader(TOPIC, 0))
        assert table.schema == SCHEMA
        assert table.column("offset").to_pylist() == [0, 1, 2, 3]
        assert table.column("payload").to_pylist() == [b"a", b"", b"\xff\x00", b"d"]
        assert table.column("key").to_pylist() == [b"x", None, b"", None]
        assert table.column("meta").to_pylist() == [[("k", "v"), ("ü", "€")]] * 3 + [[]]
        assert table.column("stream").to_pylist() == ["~c", "~c", "~c", "~other"]
        assert table.column("peer").to_pylist() == ["web"] * 4
        assert table.column("seq").to_pylist() == [0, 1, 2, 7]

    def test_reading_starts_and_ends_where_it_is_told(self, log: Log, writer: Writer) -> None:
        for i in range(10):
            writer.append([batch(b"%d" % (2 * i), b"%d" % (2 * i + 1), seq=2 * i)])
        reader = log.reader(TOPIC, 0)
        assert payloads(reader, 3, end=6) == [b"3", b"4", b"5"]
        assert payloads(reader, 17) == [b"17", b"18", b"19"]
        assert payloads(reader, 5, max_rows=3) == [b"5", b"6", b"7"]
        assert payloads(reader, 20) == []
        assert (reader.begin(), reader.end()) == (0, 20)

    def test_everything_is_there_after_reopening(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a")])
        again = self.reopen(log, writer)
        assert again.append([batch(b"b", stream="~d")]) == [Appended(1, 1)]
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == [b"a", b"b"]

    def test_a_time_finds_the_first_message_at_or_after_it(self, log: Log, writer: Writer) -> None:
        for at, stream in ((1000, "~a"), (3000, "~b"), (2000, "~c"), (5000, "~d")):
            writer.append([batch(b"x", stream=stream, time_us=at)])
        reader = log.reader(TOPIC, 0)
        assert [reader.offset_at(at) for at in (0, 1000, 1001, 3001, 5000, 5001)] == [
            0,
            0,
            1,
            3,
            3,
            4,
        ]

    # --- Idempotence ---

    def test_a_repeat_is_a_no_op_with_the_first_offset(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a", b"b", stream="s"), batch(b"x", stream="t")])
        writer.append([batch(b"c", stream="s", seq=2)])
        assert writer.append([batch(b"a", b"b", stream="s")]) == [Appended(0, 2, 2)]
        assert writer.append([batch(b"c", b"d", stream="s", seq=2)]) == [Appended(3, 2, 1)]
        again = self.reopen(log, writer)
        assert again.append([batch(b"b", stream="s", seq=1)]) == [Appended(1, 1, 1)]
        assert again.append([batch(b"d", b"e", stream="s", seq=3)]) == [Appended(4, 2, 1)]
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == [b"a", b"b", b"x", b"c", b"d", b"e"]

    def test_repeats_inside_one_group_are_found(self, log: Log, writer: Writer) -> None:
        results = writer.append([batch(b"a", stream="s"), batch(b"a", stream="s")])
        assert results == [Appended(0, 1), Appended(0, 1, 1)]

    def test_a_number_that_was_skipped_is_refused_not_lost(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a", stream="s", seq=1), batch(b"c", stream="s", seq=3)])
        with pytest.raises(OutOfOrder, match="number 2 comes after 3"):
            writer.append([batch(b"b", stream="s", seq=2)])
        with pytest.raises(OutOfOrder):
            writer.append([batch(b"0", stream="s", seq=0)])

    def test_an_idempotency_key_counts_once(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"-"), batch(b"a", stream="key:1")])
        assert writer.append([batch(b"a", stream="key:1")]) == [Appended(1, 1, 1)]
        again = self.reopen(log, writer)
        assert again.append([batch(b"a", stream="key:1")]) == [Appended(1, 1, 1)]
        assert again.append([batch(b"b", stream="key:2")]) == [Appended(2, 1)]
        again.close()

    def test_producer_ids_must_rise(self, log: Log) -> None:
        log.create(TOPIC, TopicConfig(ids="producer"))
        writer = log.writer(TOPIC, 0)
        assert writer.append([batch(b"a", stream="out", seq=10)]) == [Appended(0, 1)]
        assert writer.append([batch(b"c", stream="out", seq=20)]) == [Appended(1, 1)]
        assert writer.append([batch(b"b", stream="elsewhere", seq=15)])[0].repeats == 1
        again = self.reopen(log, writer)
        assert again.append([batch(b"c", stream="out", seq=20)]) == [Appended(1, 1, 1)]
        assert again.append([batch(b"d", stream="out", seq=21)]) == [Appended(2, 1)]
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == [b"a", b"c", b"d"]

    def test_producer_ids_need_one_partition(self, log: Log) -> None:
        with pytest.raises(LogError, match="one partition"):
            log.create(TOPIC, TopicConfig(ids="producer", partitions=2))

    # --- Rows ---

    def test_rows_are_read_back_whole_between_batches(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"first")])
        given = some_rows(b"a", b"", b"\xff", streams=("s", "~c"), seq=7)
        assert writer.append_rows(given, producer="p", number=3) == Appended(1, 3)
        writer.append([batch(b"last", seq=1)])
        table = rows(log.reader(TOPIC, 0))
        assert table.schema == SCHEMA
        assert table.column("offset").to_pylist() == [0, 1, 2, 3, 4]
        assert table.column("payload").to_pylist() == [b"first", b"a", b"", b"\xff", b"last"]
        assert table.slice(1, 3).drop_columns(["offset"]).to_pylist() == given.to_pylist()

    def test_a_producers_number_counts_once(self, log: Log, writer: Writer) -> None:
        assert writer.append_rows(some_rows(b"a", b"b"), producer="p", number=5) == Appended(0, 2)
        assert writer.append_rows(some_rows(b"c"), producer="q", number=5) == Appended(2, 1)
        again = writer
        for _ in range(2):
            repeat = again.append_rows(some_rows(b"a", b"b"), producer="p", number=5)
            assert repeat == Appended(0, 2, 2)
            assert again.append_rows(some_rows(b"x"), producer="p", number=4).repeats == 1
            again = self.reopen(log, again)
        assert again.append_rows(some_rows(b"d"), producer="p", number=9) == Appended(3, 1)
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == [b"a", b"b", b"c", b"d"]

    def test_the_streams_of_rows_are_data(self, log: Log, writer: Writer) -> None:
        writer.append_rows(some_rows(b"a", b"b", streams=("s",)), producer="p", number=0)
        writer.append_rows(some_rows(b"a", b"b", streams=("s", "key:1")), producer="p", number=1)
        again = self.reopen(log, writer)
        assert again.append([batch(b"x", stream="s", seq=0)]) == [Appended(4, 1)]
        assert again.append([batch(b"y", stream="key:1", seq=0)]) == [Appended(5, 1)]
        again.close()

    def test_more_rows_than_a_frame_holds_are_stored_once(self, log: Log, writer: Writer) -> None:
        big = [bytes([i]) * (3 << 20) for i in range(20)]
        assert writer.append_rows(some_rows(*big), producer="p", number=0) == Appended(0, 20)
        again = self.reopen(log, writer)
        assert again.append_rows(some_rows(*big), producer="p", number=0) == Appended(0, 20, 20)
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == big

    def test_no_rows_change_nothing(self, log: Log, writer: Writer) -> None:
        writer.append([batch(b"a")])
        assert writer.append_rows(some_rows(), producer="p", number=0) == Appended(1, 0)
        assert writer.append_rows(some_rows(b"b"), producer="p", number=0) == Appended(1, 1)

    def test_rows_that_cannot_be_stored_are_refused(self, log: Log, writer: Writer) -> None:
        good = some_rows(b"a")
        nulls = good.set_column(6, "payload", pa.array([None], pa.binary()))
        texts = good.set_column(3, "seq", pa.array(["x"]))
        for bad, why in (
            (good.drop_columns(["seq"]), "missing: seq"),
            (good.append_column("offset", pa.array([1])), "not known: offset"),
            (nulls, "'payload' has nulls"),
            (texts, "column 'seq'"),
        ):
            with pytest.raises(LogError, match=why):
                writer.append_rows(bad, producer="p", number=0)
        for producer, number in (("", 0), ("a\nb", 0), ("p", -1)):
            with pytest.raises(LogError):
                writer.append_rows(good, producer=producer, number=number)
        assert log.reader(TOPIC, 0).end() == 0

    def test_rows_and_batches_share_the_queue_in_order(self, log: Log, writer: Writer) -> None:
        told: list[Appended] = []

        async def go() -> None:
            writer.start()
            for i in range(50):
                writer.submit(batch(b"b%d" % i, seq=i), told.append)  # type: ignore[arg-type]
                given = some_rows(b"r%d" % i, b"s%d" % i)
                writer.submit_rows(given, "p", i, told.append)  # type: ignore[arg-type]
            assert writer.pending_bytes > 0
            await writer.drain()
            assert writer.pending_bytes == 0
            writer.close()

        asyncio.run(go())
        assert told == [Appended(3 * i + j, 1 + j) for i in range(50) for j in (0, 1)]
        expected = [b"%c%d" % (c, i) for i in range(50) for c in b"brs"]
        assert payloads(log.reader(TOPIC, 0)) == expected

    def test_several_numbers_are_stored_by_one_sync_and_once(
        self, log: Log, writer: Writer
    ) -> None:
        told: list[Appended | PenstockError] = []
        given = [some_rows(b"%d" % n, b"%d again" % n) for n in range(4)]

        async def go() -> None:
            writer.start()
            writer.submit_numbers(given[:3], "p", [3, 5, 9], told.append)
            await writer.drain()
            assert writer.last_number("p") == 9
            writer.submit_numbers(given[1:], "p", [5, 9, 12], told.append)
            writer.submit_numbers([given[0].drop_columns(["seq"])], "p", [13], told.append)
            await writer.drain()
            await asyncio.sleep(0)
            assert writer.last_number("p") == 12
            assert writer.pending_bytes == 0
            writer.close()

        asyncio.run(go())
        assert told[:1] == [Appended(0, 6)]
        assert sum(one.repeats for one in told if isinstance(one, Appended)) == 4
        assert sum(isinstance(one, LogError) for one in told) == 1
        expected = [text for n in range(4) for text in (b"%d" % n, b"%d again" % n)]
        assert payloads(log.reader(TOPIC, 0)) == expected

    def test_upkeep_keeps_the_numbers_of_producers(self, log: Log, writer: Writer) -> None:
        for i in range(1200):
            if i % 3:
                writer.append_rows(some_rows(b"%d" % i), producer=f"p{i % 2}", number=i)
            else:
                writer.append([batch(b"%d" % i, stream="s", seq=i)])
        before = rows(log.reader(TOPIC, 0)).to_pylist()
        writer.close()
        log.maintain(TOPIC)
        assert rows(log.reader(TOPIC, 0)).to_pylist() == before
        again = log.writer(TOPIC, 0)
        assert again.append_rows(some_rows(b"x"), producer="p1", number=1199).repeats == 1
        assert again.append_rows(some_rows(b"x"), producer="p0", number=1198).repeats == 1
        assert again.append([batch(b"x", stream="s", seq=1197)]) == [Appended(1197, 1, 1)]
        assert again.append_rows(some_rows(b"x"), producer="p1", number=1200) == Appended(1200, 1)
        again.close()

    # --- Single messages ---

    def test_single_messages_keep_their_place_among_batches(self, log: Log, writer: Writer) -> None:
        """Also of one stream: a connection may post one message, then many, then one."""
        source = Source("web", "~c")
        waiter = _Waiter()
        told: list[Appended] = []

        async def go() -> None:
            writer.start()
            for i in range(0, 300, 3):
                writer.submit_one(source, i, b"%d" % i, b'{"i":"%d"}' % (i % 7), waiter)
                more = batch(b"%d" % (i + 1), seq=i + 1, meta={"i": "b"})
                writer.submit(more, told.append)  # type: ignore[arg-type]
                writer.submit_one(source, i + 2, b"x" * (i * 50), b"{}", waiter)
            assert writer.pending_bytes > 0
            await writer.drain()
            assert writer.pending_bytes == 0
            writer.close()

        asyncio.run(go())
        assert waiter.stored_at == {i: i for i in range(300) if i % 3 != 1}
        assert [result.offset for result in told] == list(range(1, 300, 3))
        found = rows(log.reader(TOPIC, 0)).to_pylist()
        assert [row["seq"] for row in found] == list(range(300))
        assert {row["stream"] for row in found} == {"~c"}
        assert [found[i]["meta"] for i in (0, 1, 2, 15)] == [
            [("i", "0")],
            [("i", "b")],
            [],
            [("i", "1")],
        ]
        assert [found[i]["payload"] for i in (0, 1, 2, 299)] == [b"0", b"1", b"", b"x" * 14850]

    def test_a_large_single_message_is_stored_like_any_other(
        self, log: Log, writer: Writer
    ) -> None:
        waiter = _Waiter()
        large = b"l" * 9_000_000

        async def go() -> None:
            writer.start()
            for i, payload in enumerate((b"a", large, b"b", large)):
                writer.submit_one(Source("web", "~c"), i, payload, b"{}", waiter)
            await writer.drain()
            writer.close()

        asyncio.run(go())
        assert waiter.stored_at == {i: i for i in range(4)}
        assert payloads(log.reader(TOPIC, 0)) == [b"a", large, b"b", large]

    def test_single_messages_that_wait_when_the_log_closes_are_refused(
        self, log: Log, writer: Writer
    ) -> None:
        waiter = _Waiter()

        async def go() -> None:
            writer.start()
            for i in range(3):
                writer.submit_one(Source("web", "~c"), i, b"m", b"{}", waiter)
            writer.close()
            writer.submit_one(Source("web", "~c"), 3, b"m", b"{}", waiter)
            await asyncio.sleep(0)

        asyncio.run(go())
        assert waiter.stored_at == {}
        assert [type(error) for error in waiter.errors.values()] == [LogClosed] * 4
        assert log.reader(TOPIC, 0).end() == 0

    def test_a_topic_with_producer_ids_refuses_messages_without(self, log: Log) -> None:
        log.create(TOPIC, TopicConfig(ids="producer"))
        writer, waiter = log.writer(TOPIC, 0), _Waiter()

        async def go() -> None:
            writer.start()
            for seq in (0, 1, 1, 2):
                writer.submit_one(Source("web", "~c"), seq, b"%d" % seq, b"{}", waiter)
            await writer.drain()
            writer.close()

        asyncio.run(go())
        assert waiter.stored_at == {}
        assert {seq: type(error) for seq, error in waiter.errors.items()} == dict.fromkeys(
            (0, 1, 2), NeedsId
        )
        again = log.writer(TOPIC, 0)
        for stream in ("~c", "~d", "key:1", "key:2"):
            with pytest.raises(NeedsId):
                again.append([batch(b"x", stream=stream)])
        assert again.append([batch(b"0", stream="s")]) == [Appended(0, 1)]
        again.close()
        assert payloads(log.reader(TOPIC, 0)) == [b"0"]

    # --- Group commit ---

    def test_submit_calls_back_in_order_once_durable(self, log: Log, writer: Writer) -> None:
        told: list[Appended] = []

        async def go() -> None:
            writer.start()
            for i in range(500):
                writer.submit(batch(b"%d" % i, seq=i), told.append)  # type: ignore[arg-type]
            assert writer.pending_bytes > 0
            await writer.drain()
            assert writer.pending_bytes == 0
            writer.close()

        asyncio.run(go())
        assert told == [Appended(i, 1) for i in range(500)]
        assert payloads(log.reader(TOPIC, 0)) == [b"%d" % i for i in range(500)]

    # --- Upkeep ---

    def test_upkeep_changes_nothing_that_a_reader_sees(self, log: Log, writer: Writer) -> None:
        for i in range(1500):
            writer.append([batch(b"%d" % i, stream=f"s{i % 7}", seq=i, meta={"i": str(i % 3)})])
        reader = log.reader(TOPIC, 0)
        before = rows(reader)
        writer.close()
        log.maintain(TOPIC)
        after = log.reader(TOPIC, 0)
        assert rows(after).equals(before) or rows(after).to_pylist() == before.to_pylist()
        assert payloads(after, 700, end=702) == [b"700", b"701"]
        again = log.writer(TOPIC, 0)
        assert again.append([batch(b"3", stream="s3", seq=3)]) == [Appended(3, 1, 1)]
        again.close()
