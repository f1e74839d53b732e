"""A start looks at every queue, so each must cost little: a stranger can make very many."""

from __future__ import annotations

from rocketpost.store.files import RealFiles

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
    store.commit()
    store.close_blocking()
    files = CountingFiles()
    store = opener(files=files)
    # Once to find its end and to check it, the rest to see whether its first messages expired.
    assert files.queue_reads <= 3 * QUEUES
    assert all(len(bodies(store, queue_id=queue_id)) == 1 for queue_id in range(QUEUES))
