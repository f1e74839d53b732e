"""A start looks at every queue, so each must cost little: a stranger can make very many."""

from __future__ import annotations

import shutil

import pytest

from rocketpost.store.files import RealFiles
from rocketpost.store.log.walk import walk

from .conftest import Opener, draft
from .test_message_store import bodies

QUEUES = 50


class CountingFiles(RealFiles):
    def __init__(self) -> None:
        self.queue_reads = 0
        self._queue_fds: set[int] = set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        fd = super().open(path, write=write, create=create)
        if "/consumequeue/" in path:
            self._queue_fds.add(fd)
        else:
            self._queue_fds.discard(fd)
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        self.queue_reads += fd in self._queue_fds
        return super().pread(fd, size, offset)


def test_a_short_queue_is_read_a_few_times_at_a_start(opener: Opener) -> None:
    store = opener()
    for queue_id in range(QUEUES):
        store.append(draft(b"body", queue_id=queue_id))
    store.confirm(store.commit())
    store.close_blocking()
    files = CountingFiles()
    store = opener(files=files)
    # Once to find its end and to check it, the rest to see whether its first messages expired.
    assert files.queue_reads <= 3 * QUEUES
    assert all(len(bodies(store, queue_id=queue_id)) == 1 for queue_id in range(QUEUES))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_start_keeps_no_descriptor_of_segments_that_it_only_read(
    opener: Opener, is_whole: bool
) -> None:
    store = opener()
    for _ in range(20):
        store.append(draft(bytes(6000)))
        store.confirm(store.commit())
    store.close_blocking()
    if not is_whole:  # then all of the log is read
        shutil.rmtree(opener.root / "consumequeue")
    store = opener()
    assert len(list(walk(store.segments, 0, store.end_position))) == 20
    segments = store.segments.all()
    assert len(segments) == 10
    assert [segment.start for segment in segments if segment._fd >= 0 or segment.is_mapped] == [
        segments[-1].start
    ]
    assert len(bodies(store)) == 20
