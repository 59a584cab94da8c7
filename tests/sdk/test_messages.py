"""Encoders, decoders and configs of extensions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock.errors import ConfigError, InvalidMessage
from penstock.sdk import (
    Outgoing,
    SinkExtensionConfig,
    SourceExtensionConfig,
    message_decoder,
    message_encoder,
)


@message_encoder
def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


@message_decoder
def decode(payload: bytes) -> Any:
    return json.loads(payload)


def test_a_value_survives_its_encoder_and_decoder() -> None:
    assert decode(encode({"n": 1})) == {"n": 1}
    keyed = message_encoder(lambda value: Outgoing(value, key=b"k", event_time=7))
    assert keyed(b"x") == Outgoing(b"x", b"k", 7)


def test_what_fails_names_the_function_and_the_value() -> None:
    with pytest.raises(InvalidMessage, match=r"encode cannot encode \{1\}: TypeError"):
        encode({1})
    with pytest.raises(InvalidMessage, match=r"decode cannot decode b'\{': JSONDecodeError"):
        decode(b"{")
    text: Any = message_encoder(str)
    with pytest.raises(InvalidMessage, match="str gave str; an encoder gives bytes"):
        text(1)


def test_a_config_is_the_component_of_the_flow_file() -> None:
    source = SourceExtensionConfig(
        name="orders", port=7100, cookie="tacos", codec="json", options={"credits": 10}
    )
    assert source.component() == {
        "module": "receiver.connector",
        "codec": "json",
        "params": {"bind": "127.0.0.1:7100", "version": "v0.0.1", "cookie": "tacos", "credits": 10},
    }
    assert "tacos" not in repr(source)
    sink = SinkExtensionConfig(name="out", host="::1", port=7200, version="0.0.1")
    assert sink.component() == {
        "module": "sink.connector",
        "params": {"address": "[::1]:7200", "version": "0.0.1"},
    }
    with pytest.raises(ConfigError, match="70000 is no port"):
        SinkExtensionConfig(name="out", port=70000)


def loaded_by(names: str) -> set[str]:
    """Which large packages come with these names of the SDK."""
    program = (
        "import sys, penstock.sdk as sdk\n"
        f"[getattr(sdk, name) for name in {names}]\n"
        "print(*sorted({'pyspark', 'pyarrow', 'py4j', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_the_package_loads_neither_spark_nor_arrow() -> None:
    assert loaded_by("()") == set()
    assert loaded_by("sdk.__all__") <= {"pyarrow"}
