from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.model.ids import Position
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.files import DiskUsage, RealFiles
from rocketpost.store.message_store import MessageStore

HOST = pack_host("10.0.0.1", 10911)


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


def draft(
    body: bytes = b"hello",
    *,
    topic: str = "TopicA",
    queue_id: int = 0,
    properties: bytes = b"",
    keys: tuple[str, ...] = (),
    tags_code: int = 0,
    sys_flag: int = 0,
) -> Draft:
    return Draft(
        topic, queue_id, 0, sys_flag, 1_700_000_000_000, HOST, HOST, 0, 0, body, properties,
        tags_code, keys,
    )  # fmt: skip


class Roomy(RealFiles):
    """Real files on a disk that is half full, whatever the one is that the tests run on."""

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(100, 50, 50)


class Opener:
    """Opens stores in one directory, and closes what a test left open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.durable: list[Position] = []
        self.broken: list[str] = []
        self.stores: list[MessageStore] = []

    def config(self, **changes: Any) -> StoreConfig:
        values: dict[str, Any] = {
            "root": str(self.root),
            "segment_bytes": 16384,
            "queue_file_bytes": 2000,
            "message_bytes_max": 8192,
            "index_slot_count": 64,
            "index_entry_count": 256,
            "flush_mode": FlushMode.ASYNC_FLUSH,
            "flush_interval_ms": 60_000,
            "queue_flush_interval_ms": 60_000,
        }
        return StoreConfig(**(values | changes))

    def __call__(
        self,
        *,
        files: Any = None,
        accept_missing: bool = False,
        ceiling: Position | None = None,
        **changes: Any,
    ) -> MessageStore:
        store = MessageStore.open_blocking(
            self.config(**changes),
            clock=self.clock,
            files=files if files is not None else Roomy(),
            accept_missing=accept_missing,
            ceiling=ceiling,
            on_durable=self.durable.append,
            on_broken=self.broken.append,
        )
        self.stores.append(store)
        return store

    def crash(self, store: MessageStore) -> None:
        """Let go of a store as a killed process would: nothing is flushed, abort stays."""
        store._flusher.close_blocking()
        store._checkpointer.close_blocking()
        store._parts.release_blocking()
        self.stores.remove(store)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "store")
    yield opener
    for store in opener.stores:
        store.close_blocking()


@pytest.fixture
def make_draft() -> Callable[..., Draft]:
    return draft
