"""A broker with a flaw or a bad disk: ``python odd_broker.py OPTIONS -- mqbroker -c FILE``.

    --bug NAME            plant a bug (the functions that are named in ``BUGS``)
    --mirror STORE MIRROR run on a disk that forgets (``volatile_disk``)
    --slow-sync SECONDS   let each sync of that disk take this long
    --full-every N        let each N-th write to the commit log find the disk full
    --die POINT N         die when coming to a point of a transaction for the N-th time (``deaths``)

The process is otherwise the real one.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import deaths
import kind_bugs
import volatile_disk

from rocketpost.server.__main__ import servers
from rocketpost.server.writer.acknowledgement_rules import Written
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.checkpointer import Checkpointer
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.files import RealFiles
from rocketpost.store.recovery.recovery import Recovery
from rocketpost.store.tables import TableFile

LATE_SECONDS = 0.05


def ack_before_commit() -> None:
    """Acknowledge what is only in the memory of the process."""

    def commit(self: Any) -> None:
        self._is_scheduled = False
        sends, self._appended = self._appended, []
        if sends:
            self._acknowledge(sends)
        write = self._store.commit
        self._loop.call_later(LATE_SECONDS, lambda: self.advance(Written, write()))

    LogWriter.commit = commit  # type: ignore[method-assign]


def ack_before_fsync() -> None:
    """Acknowledge what is only in the page cache, although SYNC_FLUSH promises the disk."""

    def commit(self: Any) -> None:
        self._is_scheduled = False
        sends, self._appended = self._appended, []
        self.advance(Written, self._store.commit())
        if sends:
            self._acknowledge(sends)
        self._loop.call_later(LATE_SECONDS, self._store.request_flush)

    LogWriter.commit = commit  # type: ignore[method-assign]


def visible_before_durable() -> None:
    """Show readers what a power cut can take back, although SYNC_FLUSH says otherwise."""
    true_write = LogWriter._write

    def write(self: LogWriter, sends: Any) -> Any:
        end = true_write(self, sends)
        self._show(end)
        return end

    LogWriter._write = write  # type: ignore[method-assign]


def no_crc_check() -> None:
    """Believe in recovery every record whose lengths add up."""
    true_init = Recovery.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        true_init(self, *args, **kwargs)
        self._verify_crc = False

    Recovery.__init__ = init  # type: ignore[method-assign]


def counters_stay() -> None:
    """Do not give back the queue offsets of messages that could not be written."""

    def forget_from(self: Any, position: int) -> None:
        self.pending[:] = [entry for entry in self.pending if entry.position < position]

    Dispatcher.forget_from = forget_from  # type: ignore[method-assign]


def tables_not_synced() -> None:
    """Save tables without making their bytes durable before the rename."""

    def write(self: Any, path: str, data: bytes) -> None:
        fd = self._files.open(path, create=True)
        self._files.ftruncate(fd, 0)
        self._files.pwrite(fd, data, 0)
        self._files.close(fd)

    TableFile._write = write  # type: ignore[method-assign]


def deletion_not_saved() -> None:
    """Acknowledge the deletion of a topic without writing it down."""
    DeletedTopics.save_blocking = lambda self: None  # type: ignore[method-assign]


def offsets_start_over() -> None:
    """Count a topic that is made again from 0."""
    DeletedTopics.next_offset = lambda self, topic, queue_id: 0  # type: ignore[method-assign]


def checkpoint_runs_ahead() -> None:
    """Say that queues are saved without saving them, and believe it when starting again.

    The second half is needed: recovery counts the entries, and builds queues again that lack some.
    """

    def load_queues(self: Any) -> None:
        progress = self._progress
        before = None if progress is None else progress.position
        self._queues.load_blocking(before=before, clean=progress is not None and self._clean)
        self._queue_from = before or 0

    Recovery._load_queues = load_queues  # type: ignore[method-assign]
    true_save = Checkpointer.save_blocking

    def save_blocking(self: Any) -> None:
        queues, self._queues = self._queues, ()
        try:
            true_save(self)
        finally:
            self._queues = queues

    Checkpointer.save_blocking = save_blocking  # type: ignore[method-assign]
    Checkpointer._is_due = lambda self: True  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        ack_before_commit,
        ack_before_fsync,
        visible_before_durable,
        no_crc_check,
        counters_stay,
        tables_not_synced,
        deletion_not_saved,
        offsets_start_over,
        checkpoint_runs_ahead,
        kind_bugs.pop_acks_ignored,
        kind_bugs.send_backs_dropped,
        kind_bugs.delays_cut_short,
        kind_bugs.rollbacks_delivered,
        kind_bugs.duplicates_stored,
        kind_bugs.pulls_skip,
    )
}


def fill_disk_every(count: int) -> None:
    """Let every ``count``-th write to the commit log fail for want of room, half done."""
    writes = 0

    def pwrite(fd: int, data: Any, offset: int) -> int:
        nonlocal writes
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            writes += 1
            if writes % count == 0:
                os.pwrite(fd, memoryview(data)[: len(data) // 2], offset)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    RealFiles.pwrite = staticmethod(pwrite)  # type: ignore[assignment]


def main() -> None:
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", choices=sorted(BUGS))
    parser.add_argument("--mirror", nargs=2)
    parser.add_argument("--slow-sync", type=float, default=0.0)
    parser.add_argument("--full-every", type=int)
    parser.add_argument("--die", nargs=2)
    options = parser.parse_args(sys.argv[1:at])
    if options.mirror:
        volatile_disk.install(*options.mirror, sync_seconds=options.slow_sync)
    if options.full_every:
        fill_disk_every(options.full_every)
    if options.die:
        deaths.die_at(options.die[0], int(options.die[1]))
    if options.bug:
        BUGS[options.bug]()
    servers(sys.argv[at + 1 :])


if __name__ == "__main__":
    main()
