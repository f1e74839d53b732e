"""The log as a master sends it: new bytes from the file, older ones from the map."""

from __future__ import annotations

import socket
from pathlib import Path

from rocketpost.server.replication.master_log import MasterLog
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
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
