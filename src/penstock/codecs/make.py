"""From a codec's name and options to the codec."""

from __future__ import annotations

from penstock.codecs.csv import CsvCodec
from penstock.codecs.interface import Codec
from penstock.codecs.json import JsonCodec
from penstock.codecs.msgpack import MsgpackCodec
from penstock.codecs.options import CsvOptions, JsonOptions, MsgpackOptions, StringOptions
from penstock.codecs.text import StringCodec
from penstock.config.flow import Stage
from penstock.errors import ConfigError


def make_codec(stage: Stage) -> Codec:
    match stage.options:
        case JsonOptions() as options:
            return JsonCodec(options)
        case StringOptions() as options:
            return StringCodec(options)
        case CsvOptions() as options:
            return CsvCodec(options)
        case MsgpackOptions() as options:
            return MsgpackCodec(options)
    raise ConfigError(f"the codec {stage.name} cannot be used in a flow yet")
