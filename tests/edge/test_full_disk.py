"""A full disk, seen by a sender: 507 and nothing stored, until there is space again."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

import pytest

from tests.edge.conftest import Edge
from tests.small_disk import Disk, small_disk

pytestmark = pytest.mark.slow


def body(number: int) -> bytes:
    size = number * 7919 % 20_000
    return b"%d:%d:" % (number, size) + b"x" * size


class Sender:
    def __init__(self, web: Edge) -> None:
        self._connection = http.client.HTTPConnection(*web.host_port, timeout=60)

    def post(self, number: int) -> http.client.HTTPResponse:
        headers = {"Penstock-Stream": "till", "Penstock-Sequence": str(number)}
        self._connection.request("POST", "/", body(number), headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer

    def post_until_full(self, start: int) -> int:
        """The number that was refused."""
        for number in range(start, start + 10_000):
            answer = self.post(number)
            if answer.status == 507:
                assert answer.headers["retry-after"] == "1"
                return number
            assert answer.status == 202
        raise AssertionError("the disk does not fill up")

    def post_until_stored(self, number: int) -> None:
        deadline = time.monotonic() + 60
        while (status := self.post(number).status) != 202:
            assert status == 507
            assert time.monotonic() < deadline, "space is back, and messages are still refused"
            time.sleep(0.1)


def test_a_full_disk_is_507_and_everything_answered_202_is_there_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        disk.fill(leave_bytes=8 << 20)
        web = Edge(disk.path, "receiver.http", {"bind": "127.0.0.1:0"})
        try:
            expected = fill_kill_and_free(web, disk)
            assert web.stop() == 0
        finally:
            if web.process.poll() is None:
                web.kill()
        assert web.payloads() == [body(number) for number in range(expected)]
        assert web.log.verify(web.topic).corrupt == ()


def fill_kill_and_free(web: Edge, disk: Disk) -> int:
    sender = Sender(web)
    refused = sender.post_until_full(0)
    assert refused > 0
    assert sender.post(0).status == 507  # for a second it is not even tried
    disk.make_room()
    sender.post_until_stored(refused)

    disk.fill(leave_bytes=1 << 20)
    refused = sender.post_until_full(refused + 1)
    disk.fill()
    web.kill()
    web.start()  # on a full disk
    sender = Sender(web)
    assert sender.post(refused).status == 507
    disk.make_room()
    sender.post_until_stored(refused)
    return refused + 1
