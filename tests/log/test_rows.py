"""Rows in the embedded log: what a crash leaves, what the keeper makes of them, what is remembered."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import LogError, OutOfOrder
from penstock.limits import EXPANDED_META_BYTES, PACKED_ROWS
from penstock.log import Appended, Retention, TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from tests.log.contract import TOPIC, batch, payloads, rows, some_rows

MANY = 12
BIG = [bytes([65 + i]) * (5 << 20) for i in range(MANY)]
"""Too much for one frame, and for one group."""


def partition(data_dir: Path) -> Path:
    return data_dir / "topics/default/orders.web/0000"


def segment(data_dir: Path, base: int = 0) -> Path:
    return partition(data_dir) / f"{base:020d}.seg"


def test_a_number_of_which_a_crash_left_a_part_is_finished_by_sending_it_again(
    tmp_path: Path,
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    writer.append_rows(some_rows(*BIG), producer="p", number=7)
    writer.close()
    # What a crash in the middle leaves: some whole frames, half of one, and a `tail` that knows less.
    (partition(tmp_path) / "tail").unlink()
    os.truncate(segment(tmp_path), 22 << 20)

    writer = log.writer(TOPIC, 0)
    left = log.reader(TOPIC, 0).end()
    assert 0 < left < MANY
    writer.append([batch(b"between")])
    with pytest.raises(
        OutOfOrder, match=r"number 7 only the first .* send it again before number 8"
    ):
        writer.append_rows(some_rows(b"x"), producer="p", number=8)
    with pytest.raises(LogError, match="must bring the same rows"):
        writer.append_rows(some_rows(b"x"), producer="p", number=7)
    assert writer.append_rows(some_rows(*BIG), producer="p", number=7) == Appended(0, MANY, left)
    assert writer.append_rows(some_rows(*BIG), producer="p", number=7).repeats == MANY
    assert writer.append_rows(some_rows(b"x"), producer="p", number=8).repeats == 0
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [*BIG[:left], b"between", *BIG[left:], b"x"]


def test_many_small_appends_of_rows_are_merged_and_their_numbers_kept(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for i in range(400):
        some = [b"%d-%d" % (i, j) for j in range(60)]
        writer.append_rows(some_rows(*some, streams=("s", "t")), producer=f"p{i % 3}", number=i)
        writer.append([batch(b"e%d" % i, stream="e", seq=i)])
    before = rows(log.reader(TOPIC, 0)).to_pylist()
    writer.seal()
    writer.close()
    size_before = segment(tmp_path).stat().st_size
    log.maintain(TOPIC)
    reader = log.reader(TOPIC, 0)
    sizes = [found.num_rows for found in reader.read(0)]
    assert len(sizes) == 3
    assert min(sizes[:-1]) >= PACKED_ROWS
    assert rows(reader).to_pylist() == before
    assert segment(tmp_path).stat().st_size < size_before

    # Without the sidecar, recovery learns the same from the merged frames.
    segment(tmp_path).with_suffix(".prd").unlink()
    writer = log.writer(TOPIC, 0)
    for number in (397, 398, 399):
        given = some_rows(*[b"x"] * 60)
        result = writer.append_rows(given, producer=f"p{number % 3}", number=number)
        assert result == Appended(number * 61, 60, 60)
    assert writer.append([batch(b"x", stream="e", seq=9)]) == [Appended(9 * 61 + 60, 1, 1)]
    assert writer.append([batch(b"x", stream="s", seq=0)])[0].repeats == 0  # it was only data
    writer.close()


@pytest.mark.parametrize(
    "some", [[b"x"] * (PACKED_ROWS + 7), [b"x" * 1000] * 600], ids=["many", "large"]
)
def test_frames_of_a_good_size_are_left_as_they_are(tmp_path: Path, some: list[bytes]) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for number in range(3):
        writer.append_rows(some_rows(*some), producer="p", number=number)
    writer.seal()
    writer.close()
    before = segment(tmp_path).stat()
    log.maintain(TOPIC)
    assert log.describe(TOPIC).partitions[0].packed_segments == 1
    assert segment(tmp_path).stat().st_ino == before.st_ino
    assert payloads(log.reader(TOPIC, 0)) == some * 3


def test_a_damaged_batch_is_reported_also_where_its_segment_was_left_as_it_is(
    tmp_path: Path,
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for number in range(3):
        writer.append_rows(some_rows(*[b"%d" % number * 1000] * 600), producer="p", number=number)
    writer.seal()
    writer.close()
    content = bytearray(segment(tmp_path).read_bytes())
    content[len(content) // 2] ^= 1
    segment(tmp_path).write_bytes(content)
    log.maintain(TOPIC)
    [corrupt] = log.verify(TOPIC).corrupt
    assert str(segment(tmp_path)) in str(corrupt)
    left = [b"0" * 1000] * 600 + [b"2" * 1000] * 600
    assert payloads(log.reader(TOPIC, 0)) == left


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_numbers_outlive_the_segments_they_were_in(tmp_path: Path, compression: str) -> None:
    log = EmbeddedLog(tmp_path)
    config = TopicConfig(compression=compression, retention=Retention(size_bytes=1))  # type: ignore[arg-type]
    log.create(TOPIC, config)
    for turn in range(5):
        writer = log.writer(TOPIC, 0)
        assert writer.append_rows(some_rows(b"x", b"y"), producer="p", number=turn).repeats == 0
        writer.seal()
        writer.close()
        log.maintain(TOPIC)
        assert payloads(log.reader(TOPIC, 0)) == []
        again = log.writer(TOPIC, 0)
        assert again.append_rows(some_rows(b"x", b"y"), producer="p", number=turn).repeats == 2
        again.close()
    assert len(list(partition(tmp_path).glob("*.prd"))) == 2


def test_long_meta_of_many_messages_is_read_in_pieces_and_not_multiplied_on_disk(
    tmp_path: Path,
) -> None:
    """A lean frame stores a run's meta once; as Arrow this one would take 3 GB."""
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    count = 100_000
    expected = [b"%d" % i for i in range(count)]
    meta = {"m": "x" * 30_000}
    writer.append([batch(b"before", stream="b")])
    writer.append([Batch.of("web", "s", 0, expected, meta=meta)])
    writer.append([batch(b"after", stream="a")])
    writer.seal()
    for packed in (0, 1):
        if packed:
            log.maintain(TOPIC)
        assert log.describe(TOPIC).partitions[0].packed_segments == packed
        assert segment(tmp_path).stat().st_size < 2 << 20
        reader = log.reader(TOPIC, 0)
        read = [(found.num_rows, found.nbytes) for found in reader.read(0)]
        assert sum(rows for rows, _ in read) == count + 2
        assert max(size for _, size in read) < 2 * EXPANDED_META_BYTES
        (some,) = reader.read(70_001, end=70_003)
        assert some.column("payload").to_pylist() == expected[70_000:70_002]
        assert some.column("meta").to_pylist() == [list(meta.items())] * 2
        assert payloads(reader, count + 1) == [b"after"]
        assert log.verify(TOPIC).corrupt == ()
    writer.close()
    again = log.writer(TOPIC, 0)
    assert again.append([batch(b"7", stream="s", seq=7)]) == [Appended(8, 1, 1)]
    again.close()


Step = tuple[str, int, int]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["rows", "rows", "batch", "reopen", "seal", "maintain", "forget"]),
            st.integers(0, 2),
            st.integers(1, 4),
        ),
        max_size=30,
    )
)
def test_whatever_happens_in_between_each_number_is_stored_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    data_dir = tmp_path_factory.mktemp("rows")
    log = EmbeddedLog(data_dir)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    expected: list[bytes] = []
    numbers = [0, 0, 0]
    last = [-1, -1, -1]
    seqs = [0, 0, 0]
    for what, who, count in steps:
        if what == "rows":
            number = numbers[who]
            some = [b"%d/%d/%d" % (who, number, i) for i in range(count)]
            fresh = writer.append_rows(some_rows(*some), producer=f"p{who}", number=number)
            assert fresh == Appended(len(expected), count)
            expected += some
            last[who] = number
            numbers[who] += count  # with gaps
        elif what == "batch":
            some = [b"s%d-%d" % (who, seqs[who] + i) for i in range(count)]
            writer.append([batch(*some, stream=f"s{who}", seq=seqs[who])])
            expected += some
            seqs[who] += count
        elif what == "seal":
            writer.seal()
        elif what == "maintain":
            log.maintain(TOPIC)
        else:
            writer.close()
            if what == "forget":
                for sidecar in partition(data_dir).glob("*.prd"):
                    sidecar.unlink()
            writer = log.writer(TOPIC, 0)
        for producer, number in enumerate(last):
            if number >= 0:
                old = writer.append_rows(some_rows(b"x"), producer=f"p{producer}", number=number)
                assert old.repeats == 1
        for stream, following in enumerate(seqs):
            if following:
                old_batch = batch(b"x", stream=f"s{stream}", seq=following - 1)
                assert writer.append([old_batch])[0].repeats == 1
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == expected
    assert log.verify(TOPIC).corrupt == ()


CHILD = """
import sys
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from tests.log.contract import batch, some_rows

data_dir, start = sys.argv[1], int(sys.argv[2])
writer = EmbeddedLog(data_dir).writer(TopicName.parse("orders.web"), 0)
number = start
while True:
    size = number * 7919 % 50 + 1
    some = [b"%d:%d:%s" % (number, i, b"x" * (i * 37 % 300)) for i in range(size)]
    if number % 10 == 7:  # several frames, and several groups
        some = [one + b"y" * (1 << 19) for one in some]
    result = writer.append_rows(some_rows(*some), producer="p", number=number)
    assert result.count == size
    assert result.repeats in (0, size) or number == start, "only the first may be there in part"
    print(number, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_a_killed_program_resumes_by_number_without_gap_or_repeat(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(segment_bytes=64 << 20))
    answered = 0
    for _ in range(8):
        command = [sys.executable, "-c", CHILD, str(tmp_path), str(answered)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()  # it has begun
        answered += 1
        timer = threading.Timer(chance.uniform(0.0, 0.6), child.send_signal, [signal.SIGKILL])
        timer.start()
        answered += len(child.stdout.read().splitlines())
        child.wait()
        timer.join()
        log.maintain(TOPIC)
    assert log.verify(TOPIC).corrupt == ()
    stored = [
        tuple(map(int, payload.split(b":")[:2]))
        for found in log.reader(TOPIC, 0).read(0)
        for payload in found.column("payload").to_pylist()
    ]
    expected = [(n, i) for n in range(answered + 1) for i in range(n * 7919 % 50 + 1)]
    assert stored == expected[: len(stored)]
    assert len(stored) >= sum(1 for number, _ in expected if number < answered)
