"""Channels of Redis as a source: every message that is published while the program runs.

    python redis_source.py --redis 127.0.0.1:6379 --channel orders --channel returns --port 7100

and in the flow file:

    shop: {module: receiver.connector, params: {bind: "127.0.0.1:7100"}}

A channel is a partition. Redis keeps nothing of what it publishes: what is published while this program is not there, nobody
has. From here on nothing is lost, whatever happens to Penstock or the network.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from types import FrameType

import redis

from penstock.sdk import SourceExtension


class RedisSubscriber:
    def __init__(self, host: str, port: int, channels: Sequence[str]) -> None:
        self.stopped = False
        self.pubsub = redis.Redis(host, port).pubsub(ignore_subscribe_messages=True)
        self.pubsub.subscribe(*channels)

    def run(self, penstock: SourceExtension) -> None:
        while not self.stopped:
            found = self.pubsub.get_message(timeout=0.5)
            if found is not None:
                penstock.write(found["data"], partition=found["channel"].decode())
        self.pubsub.close()

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopped = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis", default="127.0.0.1:6379")
    parser.add_argument("--channel", action="append", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7100)
    options = parser.parse_args()
    host, _, port = options.redis.rpartition(":")
    # Leaving waits until Penstock has all of it.
    with SourceExtension(program="redis").connect(options.host, options.port) as penstock:
        subscriber = RedisSubscriber(host, int(port), options.channel)
        signal.signal(signal.SIGTERM, subscriber.stop)
        signal.signal(signal.SIGINT, subscriber.stop)
        subscriber.run(penstock)


if __name__ == "__main__":
    main()
