"""What a partition knows of numbers outlives restarts and kills, and is loaded without reading everything."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from xxhash import xxh3_64_intdigest

from penstock.log import Appended, TopicConfig
from penstock.log.embedded import EmbeddedLog, active
from penstock.log.embedded.producers import Producers
from penstock.log.embedded.segment import segment_bases
from tests.log.contract import TOPIC, batch, some_rows

SEGMENTS = 6


def folder(data_dir: Path) -> Path:
    return data_dir / "topics/default/orders.web/0000"


def sidecars(data_dir: Path) -> list[Path]:
    return sorted(folder(data_dir).glob("*.prd"))


def filled(data_dir: Path) -> EmbeddedLog:
    """Sealed segments of three messages: of a numbered stream, with a key, and one row."""
    log = EmbeddedLog(data_dir)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for i in range(SEGMENTS):
        writer.append([batch(b"s", stream="s", seq=i), batch(b"k", stream=f"key:{i}")])
        writer.append_rows(some_rows(b"r"), producer="p", number=i)
        writer.seal()
    writer.close()
    return log


def check_repeats(log: EmbeddedLog) -> None:
    writer = log.writer(TOPIC, 0)
    for i in range(SEGMENTS):
        repeats = [batch(b"s", stream="s", seq=i), batch(b"k", stream=f"key:{i}")]
        assert writer.append(repeats) == [Appended(3 * i, 1, 1), Appended(3 * i + 1, 1, 1)]
        assert writer.append_rows(some_rows(b"r"), producer="p", number=i).repeats == 1
    assert writer.end == 3 * SEGMENTS
    writer.close()


def test_the_newest_sidecar_is_all_that_recovery_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    assert len(sidecars(tmp_path)) == 2
    read: list[Path] = []
    really = active.read_sidecar
    monkeypatch.setattr(
        active, "read_sidecar", lambda path, seed: [read.append(path), really(path, seed)][1]
    )
    check_repeats(log)
    assert read == sidecars(tmp_path)[-1:]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("lose", [Path.unlink, _flip, lambda path: os.truncate(path, 3)])
def test_without_the_newest_sidecar_segments_say_the_same(
    tmp_path: Path, lose: Callable[[Path], None], lost: int
) -> None:
    log = filled(tmp_path)
    for path in sidecars(tmp_path)[-lost:]:
        lose(path)
    check_repeats(log)
    writer = log.writer(TOPIC, 0)  # and what is sealed then has everything again
    writer.append([batch(b"more", stream="other")])
    writer.seal()
    writer.close()
    log = EmbeddedLog(tmp_path)
    writer = log.writer(TOPIC, 0)
    assert writer.append([batch(b"s", stream="s", seq=0)]) == [Appended(0, 1, 1)]
    writer.close()


def test_sidecars_of_earlier_versions_are_read_one_after_another(tmp_path: Path) -> None:
    log = filled(tmp_path)
    seed = int(orjson.loads((folder(tmp_path).parent / "topic.json").read_bytes())["seed"], 16)
    for i, base in enumerate(segment_bases(folder(tmp_path))[:-1]):
        streams = [["web", "s", i, 1, True, [[i, i, 3 * i]]]]
        json = orjson.dumps({"streams": streams, "rows": [["p", i, 1, True, 3 * i + 2, 1]]})
        producers = Producers(producer_ids=False)
        producers.admit(batch(b"k", stream=f"key:{i}"), 3 * i + 1)
        keys = b"".join(producers._keys) + struct.pack("<q", 3 * i + 1)
        data = struct.pack("<II", len(json), 1) + json + keys
        check = struct.pack("<Q", xxh3_64_intdigest(data, seed))
        (folder(tmp_path) / f"{base:020d}.prd").write_bytes(check + data)
    check_repeats(log)


_SEAL_AND_DIE = """
import os, sys
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog, active
from tests.log.contract import batch
writer = EmbeddedLog(sys.argv[1]).writer(TopicName.parse("orders.web"), 0)
print(writer.append([batch(b"last", stream="last", seq=7)])[0].offset, flush=True)
die = lambda *_: os._exit(9)
match sys.argv[2]:
    case "before the sidecar": active.os.rename = die
    case "before the next segment": active.ActiveSegment._create = die
    case "before the tail": active.ActiveSegment._publish = die
    case "before the old sidecars": active.ActiveSegment._drop_sidecars_before = die
writer.seal()
"""


@pytest.mark.parametrize(
    "where",
    [
        "before the sidecar",
        "before the next segment",
        "before the tail",
        "before the old sidecars",
    ],
)
def test_a_kill_in_the_middle_of_sealing_forgets_no_number(tmp_path: Path, where: str) -> None:
    log = filled(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _SEAL_AND_DIE, str(tmp_path), where],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (9, b"%d\n" % (3 * SEGMENTS))
    for _ in range(2):  # what the first writer recovers, seals and leaves is right for the next
        writer = log.writer(TOPIC, 0)
        assert writer.append([batch(b"last", stream="last", seq=7)]) == [
            Appended(3 * SEGMENTS, 1, 1)
        ]
        assert writer.append([batch(b"s", stream="s", seq=0)]) == [Appended(0, 1, 1)]
        assert writer.end == 3 * SEGMENTS + 1
        writer.seal()
        writer.close()


def test_a_sidecar_is_not_made_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(segment_bytes=1000))
    made_on: list[threading.Thread] = []
    really = Producers.sidecar

    def sidecar(self: Producers, seed: int) -> bytes:
        made_on.append(threading.current_thread())
        return really(self, seed)

    monkeypatch.setattr(Producers, "sidecar", sidecar)

    async def program() -> None:
        writer = log.writer(TOPIC, 0)
        writer.start()
        told: list[object] = []
        for i in range(20):
            writer.submit(batch(b"x" * 300, stream="s", seq=i), told.append)
            await writer.drain()
        writer.close()
        assert told == [Appended(i, 1) for i in range(20)]

    asyncio.run(program())
    assert len(made_on) >= 4
    assert threading.main_thread() not in made_on
    writer = log.writer(TOPIC, 0)
    assert writer.append([batch(b"x", stream="s", seq=2)]) == [Appended(2, 1, 1)]
    writer.close()
