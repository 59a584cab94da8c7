"""How commands that work on topics find the data directory and the topic they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.exit_codes import NotFound
from penstock.config.spelling import nearest
from penstock.errors import ConfigError, NoSuchTopic
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.supervisor.datadir import DATA_DIR_VARIABLE, locate_data_dir, make_data_dir

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar=DATA_DIR_VARIABLE,
        help="Where topics live. Default: .penstock in this folder.",
        show_default=False,
    ),
]
_HOW_TO_NAME_ONE = f"--data-dir or {DATA_DIR_VARIABLE}"
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic: NAME, or NAMESPACE/NAME.")
]


def open_log(data_dir: Path | None, *, create: bool = False) -> EmbeddedLog:
    """The log in the data directory; NotFound if there is none and `create` does not ask for it."""
    path = locate_data_dir(data_dir, Path.cwd())
    if create:
        make_data_dir(path)
    elif not path.exists():
        raise NotFound(f"there is no data directory {path}; name one with {_HOW_TO_NAME_ONE}")
    elif not path.is_dir():
        raise ConfigError(f"data directory {path}: is not a directory")
    return EmbeddedLog(path)


def existing_topic(log: EmbeddedLog, text: str) -> TopicName:
    """The topic that `text` names; NoSuchTopic, with the nearest spelling, if there is none.

    The error names the data directory: `penstock run` may have used the one beside its file, not this one.
    """
    name = TopicName.parse(text)
    topics = log.topics()
    if name in topics:
        return name
    close = nearest(str(name), [str(topic) for topic in topics])
    if close is not None:
        hint = f"did you mean {close}?"
    elif topics:
        hint = "`penstock topics list` shows those that exist"
    else:
        hint = f"no topic is there; `penstock topics create {name}` makes it"
    raise NoSuchTopic(
        f"there is no topic {name} in {log.data_dir}; {hint} "
        f"(another data directory: {_HOW_TO_NAME_ONE})"
    )
