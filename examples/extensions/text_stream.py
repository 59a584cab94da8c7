"""Text in, text out: a stream described once at each end of a flow, and the three programs that use them.

    python text_stream.py run                 the flow
    python text_stream.py receive             prints every line that comes out, exactly once
    python text_stream.py send FILE           sends the lines of a file; run it again, and it goes on where it was

The descriptions are the classes TextIn and TextOut: the flow uses one half, the programs the other.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame

import penstock
from penstock.sdk import (
    LineFileSource,
    SinkExtensionConfig,
    SinkStream,
    SourceExtensionConfig,
    SourceStream,
    message_decoder,
    message_encoder,
)

PORT = int(os.environ.get("TEXT_PORT", "7100"))


@message_encoder
def encode(line: bytes) -> bytes:
    return line.strip()


@message_decoder
def decode(payload: bytes) -> str:
    return payload.decode()


class TextIn(SourceStream):
    def source(self) -> SourceExtensionConfig:
        return SourceExtensionConfig(name="text_in", port=PORT, cookie="tacos", encoder=encode)


class TextOut(SinkStream):
    def sink(self) -> SinkExtensionConfig:
        return SinkExtensionConfig(name="text_out", port=PORT + 1, cookie="tacos", decoder=decode)


def shout(lines: DataFrame) -> DataFrame:
    """The pipeline's work, on Spark: whole batches, never single lines."""
    return lines.selectExpr(
        "* except (payload)", "cast(upper(cast(payload as string)) as binary) as payload"
    )


def flow() -> penstock.sdk.Pipeline:
    return penstock.pipeline("text", TextIn()).to(shout).to_sink(TextOut())


def send(path: str) -> None:
    # The file's name is the partition: each file has its own point of reference.
    with TextIn().extension().connect() as extension:
        sent = extension.feed(LineFileSource(path), partition=os.path.basename(path))
    print(f"{sent} lines sent", flush=True)


def receive() -> None:
    with TextOut().extension(folder="received") as extension:
        extension.listen()
        for line in extension:
            print(line, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run"]:
            flow().settings(admin={"enabled": False}).run()
        case ["send", path]:
            send(path)
        case ["receive"]:
            receive()
        case _:
            print(__doc__, file=sys.stderr)
