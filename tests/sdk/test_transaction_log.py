"""A sink's transaction log: what was answered for is there after any end of the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Done, Left, Preparing, Record
from penstock.errors import CorruptLog
from penstock.sdk.transaction_log import MAGIC, OLD_MAGIC, TransactionLog, encode, read_records

names = st.text(max_size=20)
offsets = st.integers(0, 2**64 - 1)
records = st.one_of(
    st.builds(Preparing, names, names, offsets, offsets),
    st.builds(Voted, names, names, st.booleans(), offsets, offsets, names),
    st.builds(Decided, names, names, st.booleans(), offsets, offsets),
    st.builds(Done, names, names),
    st.builds(Left, names),
)

SOME: list[Record] = [
    Voted("w", "t1", True, 0, 10),
    Decided("w", "t1", True, 0, 10),
    Done("w", "t1"),
    Voted("v", "t1", False, 5, 5, "no"),
    Voted("w", "t2", True, 10, 20),
]


def reopened(path: Path) -> list[Record]:
    log = TransactionLog(path)
    log.close()
    return log.records


@given(st.lists(records, max_size=20))
def test_what_is_written_is_read(found):
    data = MAGIC + b"".join(map(encode, found))
    assert read_records(data, "") == (found, len(data))


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_last_record_that_is_not_all_there_is_cut_away(found, data):
    whole = MAGIC + b"".join(map(encode, found[:-1]))
    torn = encode(found[-1])[: data.draw(st.integers(0, len(encode(found[-1])) - 1))]
    assert read_records(whole + torn, "") == (found[:-1], len(whole))
    head = torn[: data.draw(st.integers(0, 12))]
    assert read_records(whole + head + b"\0" * 100, "") == (found[:-1], len(whole))
    zeros = b"\0" * data.draw(st.integers(0, 100))
    assert read_records(whole + zeros, "") == (found[:-1], len(whole))


def test_damage_before_the_last_record_is_an_error_that_says_where(tmp_path):
    path = tmp_path / "log"
    log = TransactionLog(path)
    for record in SOME:
        log.append(record)
    log.close()
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 12] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog, match="byte 8: a record is damaged"):
        TransactionLog(path)


@pytest.mark.parametrize("at", range(len(encode(SOME[0]))))
def test_no_damaged_byte_of_a_record_makes_it_look_torn(at):
    """Of its length neither, which may then reach past the end."""
    data = bytearray(MAGIC + b"".join(map(encode, SOME)))
    data[len(MAGIC) + at] ^= 0x80
    with pytest.raises(CorruptLog, match="byte 8: a record is damaged"):
        read_records(bytes(data), "")


def test_a_log_without_checks_of_lengths_is_read_and_written_anew(tmp_path):
    path = tmp_path / "log"
    old = b"".join(one[:8] + one[12:] for one in map(encode, SOME))
    for data in (old, old + encode(SOME[0])[:8]):
        path.write_bytes(OLD_MAGIC + data)
        assert reopened(path) == SOME
        assert path.read_bytes() == MAGIC + b"".join(map(encode, SOME))
    log = TransactionLog(path)
    log.append(Done("w", "t2"))
    log.close()
    assert reopened(path) == [*SOME, Done("w", "t2")]


def test_it_goes_on_behind_a_torn_record(tmp_path):
    path = tmp_path / "log"
    log = TransactionLog(path)
    log.append(SOME[0])
    log.close()
    with open(path, "ab") as file:
        file.write(encode(SOME[1])[:-3])
    log = TransactionLog(path)
    assert log.records == SOME[:1]
    log.append(SOME[1])
    log.close()
    assert reopened(path) == SOME[:2]


def test_compaction_keeps_what_still_matters(tmp_path):
    path = tmp_path / "log"
    log = TransactionLog(path, compact_bytes=500)
    for number in range(1000):
        start, end = number * 10, number * 10 + 10
        log.append(Voted("w", f"t{number}", True, start, end))
        log.append(Decided("w", f"t{number}", True, start, end))
        log.append(Done("w", f"t{number}"))
    log.append(Decided("v", "unfinished", False, 3, 3))
    log.append(Voted("gone", "t", True, 0, 1))
    log.append(Left("gone"))
    log.append(Preparing("w", "given up", 10_000, 10_009))
    log.append(Done("w", "given up"))
    log.append(Preparing("w", "open", 10_000, 10_005))
    log.append(Voted("w", "open", True, 10_000, 10_005))
    log.append(Preparing("v", "unknown", 3, 4))
    log.compact()
    log.close()
    assert path.stat().st_size < 500
    found = reopened(path)
    assert set(found) == {
        Decided("w", "t999", True, 9990, 10_000),
        Done("w", "t999"),
        Voted("w", "open", True, 10_000, 10_005),
        Decided("v", "unfinished", False, 3, 3),
        Preparing("v", "unknown", 3, 4),
    }


def test_a_record_that_could_not_be_synced_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "log"
    log = TransactionLog(path)
    with monkeypatch.context() as patched:

        def fail(fd: int) -> None:
            raise OSError("the disk is broken")

        patched.setattr("penstock.sdk.transaction_log.os.fdatasync", fail)
        with pytest.raises(OSError, match="broken"):
            log.append(Voted("w", "t1", False, 0, 1, "a reason as long as that" * 10))
    log.append(SOME[2])
    log.close()
    assert reopened(path) == [SOME[2]]


def test_another_file_is_not_taken_for_a_log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"something else altogether")
    with pytest.raises(CorruptLog, match="no transaction log"):
        TransactionLog(path)
