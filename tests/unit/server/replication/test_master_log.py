"""The log as a master sends it: bytes just written from memory, all others from the file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rocketpost.server.replication.master_log import MasterLog
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.wave import Wave
from rocketpost.testing.clock import FakeClock

SEGMENT = 64 * 1024


def fill(store: MessageStore, count: int) -> None:
    for _ in range(count):
        store.append(Draft("T", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, b"x" * 9000, b""))
        store.confirm(store.commit())


def test_every_segment_is_sent_as_it_is(tmp_path: Path) -> None:
    config = StoreConfig(root=str(tmp_path), segment_bytes=SEGMENT, message_bytes_max=16 * 1024)
    store = MessageStore.open_blocking(config, clock=FakeClock())
    near, far = socket.socketpair()
    with near, far:
        fill(store, 16)
        log = MasterLog(store)
        assert (log.first, log.segment_bytes) == (0, SEGMENT)
        assert log.end == store.written_position > 2 * SEGMENT
        for start in (0, SEGMENT + 100, 2 * SEGMENT + 200):
            assert log.send(near, start, 5000) == 5000
            view = store.view(start, 5000)  # type: ignore[arg-type]
            assert view is not None
            assert far.recv(10_000) == bytes(view)
        assert log.send(near, 9 * SEGMENT, 1) == 0, "the log has no such bytes"
    store.close_blocking()


def test_what_was_just_written_is_sent_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(_: Wave, position: int, size: int) -> memoryview | None:
        return memoryview(b"w" * size) if position >= 9000 else None

    monkeypatch.setattr(Wave, "view_written", written)
    config = StoreConfig(root=str(tmp_path), segment_bytes=SEGMENT, message_bytes_max=16 * 1024)
    store = MessageStore.open_blocking(config, clock=FakeClock())
    near, far = socket.socketpair()
    with near, far:
        fill(store, 2)
        log = MasterLog(store)
        assert log.send(near, 9000, 100) == 100
        assert far.recv(1000) == b"w" * 100
        assert log.send(near, 8000, 100) == 100
        assert far.recv(1000) == b"x" * 100
    store.close_blocking()
