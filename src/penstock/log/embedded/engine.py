"""`EmbeddedLog`: the `Log` interface over folders. The layout is described in `__init__.py`."""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from penstock.errors import LogLocked, NoSuchTopic
from penstock.limits import APPEND_TIMEOUT_S
from penstock.log.embedded.active import sync_folder, write_durably
from penstock.log.embedded.appends.appender import Appender
from penstock.log.embedded.appends.place import Place
from penstock.log.embedded.catalog import Entry, check
from penstock.log.embedded.keeper import Damaged, is_due, is_packed, keep
from penstock.log.embedded.lock import FileLock, current_holder
from penstock.log.embedded.reader import PartitionReader
from penstock.log.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    Tail,
    TailState,
    segment_bases,
    segment_header,
    segment_path,
)
from penstock.log.embedded.trim import write_trim
from penstock.log.embedded.writer import PartitionWriter, explain
from penstock.log.interface import PartitionInfo, TopicConfig, TopicInfo
from penstock.log.names import DEFAULT_NAMESPACE, TopicName


class EmbeddedLog:
    """Topics under `data_dir`. Safe to open in any number of processes."""

    def __init__(self, data_dir: Path | str) -> None:
        self.data_dir = Path(data_dir)
        self._root = self.data_dir / "topics"
        self._damaged: Damaged = {}

    # --- Topics --------------------------------------------------------------------------------

    def create(self, name: TopicName, config: TopicConfig) -> bool:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = self._catalog_lock()
        try:
            return self._create(name, config)
        except OSError as error:
            raise explain(f"topic {name}", error) from error
        finally:
            lock.release()

    def _create(self, name: TopicName, config: TopicConfig) -> bool:
        folder = self._folder(name)
        if not folder.exists():
            check(name, config)
            self._make(folder, config)
            return True
        present = self._entry(name)
        if present.config == config:
            return False
        entry = present.changed(name, config)
        for partition in range(present.config.partitions, config.partitions):
            # One that a crash or a full disk left half made is not the topic's yet.
            shutil.rmtree(folder / f"{partition:04d}", ignore_errors=True)
            _make_partition(folder / f"{partition:04d}", entry.seed)
        write_durably(folder / "topic.json", entry.dump())
        return True

    def delete(self, name: TopicName) -> None:
        config, _ = self._load(name)
        folder = self._folder(name)
        locks: list[FileLock] = []
        try:
            for partition in range(config.partitions):
                path = folder / f"{partition:04d}" / "lock"
                locks.append(FileLock(path, what=f"partition {partition} of topic {name}"))
            doomed = folder.with_name(f".deleted-{secrets.token_hex(8)}")
            folder.rename(doomed)
            sync_folder(folder.parent)
        finally:
            for lock in locks:
                lock.release()
        shutil.rmtree(doomed, ignore_errors=True)
        with suppress(OSError):
            if name.namespace != DEFAULT_NAMESPACE:
                folder.parent.rmdir()

    def namespaces(self) -> list[str]:
        """Those with topics, and `default`, which always exists."""
        found = {DEFAULT_NAMESPACE}
        if self._root.is_dir():
            found.update(p.name for p in self._root.iterdir() if p.is_dir())
        return sorted(found)

    def topics(self, namespace: str | None = None) -> list[TopicName]:
        spaces = self.namespaces() if namespace is None else [namespace]
        found = []
        for space in spaces:
            folder = self._root / TopicName(space, "x").namespace
            if folder.is_dir():
                found += [
                    TopicName(space, path.name)
                    for path in folder.iterdir()
                    if not path.name.startswith(".") and (path / "topic.json").is_file()
                ]
        return sorted(found)

    def config(self, name: TopicName) -> TopicConfig:
        return self._load(name)[0]

    def homes(self, name: TopicName) -> int:
        return self._entry(name).homes

    def identity(self, name: TopicName) -> int:
        """A number that another topic has, should this one be deleted and made anew."""
        return self._load(name)[1]

    def describe(self, name: TopicName) -> TopicInfo:
        config, seed = self._load(name)
        return TopicInfo(
            name,
            config,
            tuple(self._describe(name, partition, seed) for partition in range(config.partitions)),
        )

    def verify(self, name: TopicName) -> TopicInfo:
        info = self.describe(name)
        corrupt = []
        for partition in range(info.config.partitions):
            reader = self.reader(name, partition)
            corrupt += reader.verify()
            reader.close()
        return replace(info, corrupt=tuple(corrupt))

    # --- Partitions ----------------------------------------------------------------------------

    def writer(
        self,
        name: TopicName,
        partition: int,
        *,
        socket_name: str | None = None,
        wait_s: float = 0.0,
    ) -> PartitionWriter:
        """`socket_name` tells other processes where to send their appends (`AppendServer`).

        A holder that serves nobody (an `Appender`, the keeper) is waited for, for `wait_s`.
        """
        config, seed = self._load(name)
        folder = self._partition(name, config, partition)
        what = f"partition {partition} of topic {name}"
        return PartitionWriter(folder, what, seed, config, socket_name=socket_name, wait_s=wait_s)

    def appender(
        self, name: TopicName, partition: int, *, timeout_s: float = APPEND_TIMEOUT_S
    ) -> Appender:
        """Appends to a partition, whoever owns it. See `Appender`."""
        place = self.place(name, partition)
        return Appender(place, lambda: self.writer(name, partition), timeout_s)

    def place(self, name: TopicName, partition: int) -> Place:
        """Where to look for the owner of a partition."""
        folder = self._partition(name, self.config(name), partition)
        return Place(self._root.parent, folder / "lock", name, partition)

    def reader(self, name: TopicName, partition: int) -> PartitionReader:
        config, seed = self._load(name)
        return PartitionReader(self._partition(name, config, partition), seed)

    def maintain(self, name: TopicName) -> None:
        config, seed = self._load(name)
        for partition in range(config.partitions):
            folder = self._partition(name, config, partition)
            if is_due(folder, seed, config):
                self._seal_if_idle(name, partition)
            keep(folder, seed, config, self._damaged)

    def trim(self, name: TopicName, partition: int, offset: int) -> None:
        write_trim(self._partition(name, self.config(name), partition), offset)

    def close(self) -> None:
        """Nothing is held open; here for engines that do."""

    def _seal_if_idle(self, name: TopicName, partition: int) -> None:
        """Nobody writes, and the last segment is due: seal it, so that it packs, and retention gets
        to it."""
        with suppress(LogLocked):
            writer = self.writer(name, partition)
            try:
                writer.seal()
            finally:
                writer.close()

    def _describe(self, name: TopicName, partition: int, seed: int) -> PartitionInfo:
        folder = self._folder(name) / f"{partition:04d}"
        reader = PartitionReader(folder, seed)
        try:
            state = reader.state()
            begin = reader.begin()
        finally:
            reader.close()
        holder = current_holder(folder / "lock")
        size = packed = 0
        bases = segment_bases(folder)
        for base in bases:
            path = segment_path(folder, base)
            with suppress(FileNotFoundError):  # retention
                size += state.position if base == state.base else path.stat().st_size
                packed += is_packed(path)
        return PartitionInfo(
            partition=partition,
            begin=begin,
            end=state.end,
            size_bytes=size,
            segments=len(bases),
            packed_segments=packed,
            writer=None if holder is None else f"pid {holder.pid} on {holder.host}",
            last_append_us=state.append_us or None,
        )

    # --- Files ---------------------------------------------------------------------------------

    def _folder(self, name: TopicName) -> Path:
        return self._root / name.namespace / name.topic

    def _partition(self, name: TopicName, config: TopicConfig, partition: int) -> Path:
        if not 0 <= partition < config.partitions:
            raise NoSuchTopic(
                f"topic {name} has no partition {partition}; it has 0 to {config.partitions - 1}"
            )
        return self._folder(name) / f"{partition:04d}"

    def _catalog_lock(self) -> FileLock:
        return FileLock(self._root / ".lock", what=f"the list of topics in {self._root}")

    def _make(self, folder: Path, config: TopicConfig) -> None:
        folder.parent.mkdir(exist_ok=True, mode=0o700)
        fresh = folder.with_name(f".new-{secrets.token_hex(8)}")
        fresh.mkdir(mode=0o700)
        seed = secrets.randbits(64)
        try:
            for partition in range(config.partitions):
                _make_partition(fresh / f"{partition:04d}", seed)
            write_durably(fresh / "topic.json", Entry(config, seed, config.partitions).dump())
            fresh.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def _load(self, name: TopicName) -> tuple[TopicConfig, int]:
        entry = self._entry(name)
        return entry.config, entry.seed

    def _entry(self, name: TopicName) -> Entry:
        return Entry.load(name, self._folder(name) / "topic.json")


def _make_partition(folder: Path, seed: int) -> None:
    """A partition that can be read from the start, before anyone has written to it."""
    folder.mkdir(mode=0o700)
    path = segment_path(folder, 0)
    write_durably(path, segment_header(0, seed))
    tail = Tail(folder, writable=True)
    tail.store(TailState(0, SEGMENT_HEADER_BYTES, 0, 0))
    tail.close()
    sync_folder(folder)
