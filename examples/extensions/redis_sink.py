"""A Redis list as a sink, exactly once.

    python redis_sink.py --redis 127.0.0.1:6379 --list orders --folder state --port 7200

and in the flow file:

    orders: {module: sink.connector, params: {address: "127.0.0.1:7200"}}

`prepare` puts the payloads into a list of their own; `commit` moves that list over inside Redis, in one step, so that
a second commit finds nothing to move. It is as durable as Redis is told to be: `appendfsync always` keeps what was
acknowledged.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import redis

from penstock.sdk import Round, Transaction, TwoPhaseSink

MOVE = """
local moved = 0
while true do
    local some = redis.call('LPOP', KEYS[1], 1000)
    if not some then return moved end
    redis.call('RPUSH', KEYS[2], unpack(some))
    moved = moved + #some
end
"""
PUSHED_AT_ONCE = 1000


class RedisSink(TwoPhaseSink):
    def __init__(self, folder: Path | str, host: str, port: int, key: str) -> None:
        super().__init__(folder)
        self.key = key
        self.redis = redis.Redis(host, port)
        self._move = self.redis.register_script(MOVE)

    def staged(self, txn: Transaction) -> str:
        # Workers that take part in the same transaction have its id in common.
        return f"{self.key}:staged:{txn.worker}:{txn.id}"

    def prepare(self, txn: Transaction, messages: Round) -> bool:
        staged = self.staged(txn)
        self.redis.delete(staged)
        payloads = messages.payloads()
        while some := list(itertools.islice(payloads, PUSHED_AT_ONCE)):
            self.redis.rpush(staged, *some)
        return True

    def commit(self, txn: Transaction) -> None:
        self._move(keys=[self.staged(txn), self.key])

    def abort(self, txn: Transaction) -> None:
        self.redis.delete(self.staged(txn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis", default="127.0.0.1:6379")
    parser.add_argument("--list", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, default=7200)
    options = parser.parse_args()
    host, _, port = options.redis.rpartition(":")
    with RedisSink(options.folder, host, int(port), options.list) as sink:
        sink.serve("127.0.0.1", options.port)


if __name__ == "__main__":
    main()
