"""PostgreSQL: an out-table as source; insert or upsert as sink."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from penstock.config.options import Options, Seconds, Texts
from penstock.config.registry import Kind, declare
from penstock.peers.options import DestinationOptions, ReceiverOptions


class PostgresOptions(Options):
    dsn: SecretStr = Field(min_length=1)
    """How to connect: `postgresql://user:password@host/database`, or `key=value` pairs."""


class PostgresSourceOptions(Options):
    table: str = Field(min_length=1)
    """The out-table: read in the order of its id, and deleted from once stored."""

    id_column: str = Field("id", min_length=1)
    """The column with the rising id."""

    payload_column: str = Field("payload", min_length=1)
    """The column with the payload."""

    meta_column: str | None = None
    """A JSON column whose members become meta."""

    channel: str | None = None
    """Wake up on NOTIFY of this channel. Without it the table is looked at every `poll_s`."""

    poll_s: Seconds = Field(1.0, gt=0)
    """How often to look for new rows."""


class PostgresTargetOptions(Options):
    table: str = Field(min_length=1)
    """The table to write."""

    columns: Texts = Field(default_factory=list)
    """The columns to fill, from fields of the same names. Default: all the fields."""

    mode: Literal["insert", "upsert"] = "insert"
    """`upsert` replaces the row with the same `conflict` columns."""

    conflict: Texts = Field(default_factory=list)
    """The columns of the unique key that an upsert goes by."""

    @model_validator(mode="after")
    def _upsert_has_key(self) -> Self:
        if self.mode == "upsert" and not self.conflict:
            raise ValueError("`mode: upsert` needs `conflict`, the columns of a unique key")
        return self


@declare(Kind.RECEIVER, "postgres", "Reads an out-table of a PostgreSQL database.")
class PostgresReceiverOptions(PostgresOptions, PostgresSourceOptions, ReceiverOptions):
    carries_ids = True


@declare(Kind.SINK, "postgres", "Writes rows of a PostgreSQL table, exactly once.")
class PostgresSinkOptions(PostgresOptions, PostgresTargetOptions, DestinationOptions):
    pass


@declare(Kind.PEER, "postgres", "Reads an out-table and writes rows.")
class PostgresPeerOptions(PostgresOptions, ReceiverOptions):
    carries_ids = True

    receive: PostgresSourceOptions
    """What to read."""

    send: PostgresTargetOptions
    """What to write."""
