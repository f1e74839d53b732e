"""Behaviour of the store when the disk fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.store.files import Buffer, RealFiles
from rocketpost.store.message_store import MessageStore

from .conftest import Opener, draft
from .test_message_store import bodies


class FaultyFiles(RealFiles):
    """Real files whose calls fail where a test says so."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.only = ""
        self._paths: dict[int, str] = {}

    def _check(self, call: str, fd: int) -> None:
        code = self.failing.get(call)
        if code is not None and self.only in self._paths.get(fd, ""):
            raise OSError(code, os.strerror(code))

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        fd = super().open(path, write=write, create=create)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
        self._check("pwrite", fd)
        return os.pwrite(fd, data, offset)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:  # type: ignore[override]
        self._check("pwritev", fd)
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._check("fdatasync", fd)
        super().fdatasync(fd)

    def fallocate(self, fd: int, size: int) -> None:
        self._check("fallocate", fd)
        super().fallocate(fd, size)


def offsets(store: MessageStore) -> dict[int, int]:
    return {queue.queue_id: queue.next_offset for queue in store.queues}


def test_after_a_failed_sync_nothing_is_acknowledged_or_taken(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    store.append(draft(b"one"))
    store.commit()
    files.failing = {"fdatasync": errno.EIO}
    with pytest.raises(StoreBroken, match="durable"):
        store._flusher.flush_blocking()
    files.failing = {}
    with pytest.raises(StoreBroken):
        store._flusher.flush_blocking()
    assert opener.durable == []
    assert len(opener.broken) == 1
    assert store.broken
    assert "durable" in (store.why_not_writable or "")
    with pytest.raises(StoreBroken):
        store.append(draft(b"two"))
    assert bodies(store) == []
    store.close_blocking()
    assert (opener.root / "abort").exists()


def test_a_full_disk_at_a_roll_leaves_the_rest_of_the_wake_up(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    store.append(draft(b"x" * 8000))
    store.confirm(store.commit())
    store._allocator.close_blocking()  # the segment made ahead goes with it
    files.failing = {"fallocate": errno.ENOSPC}
    store.append(draft(b"fits" * 500))
    with pytest.raises(StoreFull):
        store.append(draft(b"y" * 8000))
    with pytest.raises(StoreFull):
        store.append_batch([draft(b"y" * 4000), draft(b"y" * 4000)])
    store.append(draft(b"small"))
    store.confirm(store.commit())
    assert bodies(store) == [b"x" * 8000, b"fits" * 500, b"small"]
    files.failing = {}
    assert store.append(draft(b"y" * 8000)).queue_offset == 3
    store.confirm(store.commit())
    assert bodies(store)[3] == b"y" * 8000


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, StoreBroken)],
)
@pytest.mark.parametrize("after_roll", [False, True])
def test_a_failed_write_takes_back_its_wake_up(
    opener: Opener, code: int, kind: type[StoreError], after_roll: bool
) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    for queue_id in range(3):
        store.append(draft(b"kept", queue_id=queue_id))
    end = store.commit()
    store.confirm(end)
    files.failing, files.only = {"pwrite": code}, "commitlog"
    for number in range(4):
        store.append(draft(b"lost", queue_id=number % 2))
    if after_roll:
        for _ in range(2):
            store.append(draft(b"l" * 8000))
    with pytest.raises(kind):
        store.confirm(store.commit())
    assert store.end_position == end
    assert offsets(store) == {0: 1, 1: 1, 2: 1}
    files.failing = {}
    if kind is StoreBroken:
        with pytest.raises(StoreBroken):
            store.append(draft(b"more"))
        assert opener.broken
    else:
        appended = store.append(draft(b"more"))
        assert (appended.position, appended.queue_offset) == (end, 1)
        for _ in range(3):
            store.append(draft(b"m" * 8000, queue_id=2))
        store.confirm(store.commit())
        assert bodies(store) == [b"kept", b"more"]
        opener.crash(store)
        again = opener()
        assert bodies(again) == [b"kept", b"more"]
        assert bodies(again, queue_id=1) == [b"kept"]
        assert bodies(again, queue_id=2) == [b"kept"] + [b"m" * 8000] * 3


def test_a_write_torn_by_a_full_disk_is_erased(opener: Opener) -> None:
    class Torn(FaultyFiles):
        torn = False

        def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
            if self.torn and "commitlog" in self._paths[fd]:
                self.failing, self.torn = {"pwrite": errno.ENOSPC}, False
                return os.pwrite(fd, memoryview(data)[: len(data) - 1], offset)
            return super().pwrite(fd, data, offset)

    files = Torn()
    store = opener(files=files)
    end = store.append(draft(b"kept")).end
    store.confirm(store.commit())
    files.torn = True
    for _ in range(5):
        store.append(draft(b"lost" * 10))
    with pytest.raises(StoreFull):
        store.confirm(store.commit())
    files.failing = {}
    path = opener.root / "commitlog" / ("0" * 20)
    assert not any(path.read_bytes()[end:])
    assert path.stat().st_size == 16384


def test_a_tail_that_cannot_be_erased_breaks_the_store(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    store.append(draft())
    store.confirm(store.commit())
    store.append(draft())
    files.failing = {"pwrite": errno.ENOSPC, "fallocate": errno.ENOSPC}
    with pytest.raises(StoreBroken):
        store.confirm(store.commit())
    assert store.broken


def test_queue_files_that_cannot_be_written_stay_readable_and_are_reported(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    files.failing, files.only = {"pwrite": errno.ENOSPC}, "consumequeue"
    for number in range(250):
        store.append(draft(b"%d" % number))
    store.confirm(store.commit())
    assert bodies(store) == [b"%d" % number for number in range(250)]
    store._checkpointer._save_or_report()
    assert "could not be saved" in (store.why_not_writable or "")
    with pytest.raises(StoreFull):
        store.append(draft())
    files.failing = {}
    store._checkpointer._save_or_report()
    assert store.writable
    opener.crash(store)
    assert bodies(opener()) == [b"%d" % number for number in range(250)]


def test_a_topic_deleted_for_room_lets_the_store_accept_messages_again(opener: Opener) -> None:
    """Its own save leaves the checkpoint thread nothing to do but to lift the refusal."""
    files = FaultyFiles()
    store = opener(files=files)
    store.append(draft(topic="Old"))
    store.confirm(store.commit())
    files.failing, files.only = {"pwrite": errno.ENOSPC}, "consumequeue"
    store._checkpointer._save_or_report()
    assert not store.writable
    files.failing = {}
    store.delete_queues("Old").finish_blocking()
    store._checkpointer._step()
    assert store.writable, store.why_not_writable
    store.append(draft())


def test_queue_files_that_cannot_be_synced_break_the_store(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    store.append(draft(b"one"))
    store.confirm(store.commit())
    files.failing, files.only = {"fdatasync": errno.EIO}, "consumequeue"
    store._checkpointer._save_or_report()
    assert store.broken
    files.failing = {}
    opener.crash(store)
    assert bodies(opener()) == [b"one"]


def test_an_index_without_room_refuses_and_catches_up(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    files.failing, files.only = {"fallocate": errno.ENOSPC}, "/store/index"
    one = store.append(draft(keys=("a",)))
    two = store.append(draft(keys=("b",)))
    store.confirm(store.commit())
    assert not store.writable
    with pytest.raises(StoreFull, match="index"):
        store.append(draft())
    assert len(bodies(store)) == 2
    files.failing = {}
    three = store.append(draft(keys=("b",)))
    assert store.writable
    store.confirm(store.commit())
    found = [store.find("TopicA", key, count_max=9, begin_ms=0, end_ms=2**62) for key in "ab"]
    assert found == [[one.position], [three.position, two.position]]


def test_an_index_without_room_is_built_at_the_next_start(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    files.failing, files.only = {"fallocate": errno.ENOSPC}, "/store/index"
    one = store.append(draft(properties=b"KEYS\x01a\x02", keys=("a",)))
    store.confirm(store.commit())
    store.close_blocking()
    store = opener(files=files)
    assert not store.writable
    store.close_blocking()
    files.failing = {}
    store = opener(files=files)
    assert store.writable
    assert store.find("TopicA", "a", count_max=9, begin_ms=0, end_ms=2**62) == [one.position]


def test_a_log_that_cannot_reserve_room_at_start_continues_sparsely(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"one"))
    store.confirm(store.commit())
    opener.crash(store)
    files = FaultyFiles()
    files.failing = {"fallocate": errno.ENOSPC}
    store = opener(files=files)
    store.append(draft(b"two"))
    store.confirm(store.commit())
    assert bodies(store) == [b"one", b"two"]
    assert (opener.root / "commitlog" / ("0" * 20)).stat().st_size == 16384


def test_a_failure_while_opening_releases_the_lock(opener: Opener, monkeypatch: Any) -> None:
    opener().close_blocking()
    (opener.root / "config").mkdir()
    (opener.root / "config" / "droppedTopics.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        opener()
    (opener.root / "config" / "droppedTopics.json").unlink()
    opener()


def test_many_large_messages_are_written_without_joining(opener: Opener) -> None:
    class Short(FaultyFiles):
        calls = 0

        def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:  # type: ignore[override]
            self.calls += 1
            return os.pwritev(fd, buffers[:-1], offset)

    files = Short()
    store = opener(files=files, segment_bytes=4 * 1024**2)
    for number in range(300):
        store.append(draft(b"%d" % number * 2000))
    store.confirm(store.commit())
    assert files.calls > 1
    assert bodies(store) == [b"%d" % number * 2000 for number in range(300)]


class FullDisk(RealFiles):
    """Real files on a disk without room: what is there can be overwritten, but nothing grows."""

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
        if offset + len(bytes(data)) > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    def fallocate(self, fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_store_of_an_earlier_version_opens_on_a_full_disk(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"kept"))
    store.append(draft(b"deleted", topic="TopicB"))
    store.confirm(store.commit())
    store.delete_queues("TopicB").finish_blocking()
    opener.crash(store)
    for name in ("extent", "config/droppedTopics.json.bak", "commitlog/allocating/lock"):
        (opener.root / name).unlink()
    store = opener(files=FullDisk())
    assert store.writable
    assert bodies(store) == [b"kept"]
    opener.crash(store)
    store = opener()
    assert (opener.root / "extent").stat().st_size
    assert (opener.root / "config/droppedTopics.json.bak").exists()
    store.append(draft(b"new", topic="TopicB"))
    store.confirm(store.commit())
    queue = store.queue("TopicB", 0)
    assert queue is not None
    assert (queue.first, queue.end) == (1, 2)


def test_segments_expire_though_the_extent_cannot_be_written(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files)
    for _ in range(10):
        store.append(draft(bytes(6000)))
        store.confirm(store.commit())
    store.save_blocking()
    plan = store.cleaning.plan_blocking(now_ms=opener.clock.ms + 10**12, hour=4)
    assert plan.to_delete
    files.failing, files.only = {"pwrite": errno.ENOSPC}, "extent"
    store.cleaning.apply(plan)
    while store.cleaning.trim_queues():
        pass
    store.cleaning.unlink_blocking()
    first = store.first_position
    assert first > 0
    opener.crash(store)
    assert opener().first_position == first


def test_a_segment_whose_roll_was_taken_back_is_not_scrubbed(opener: Opener) -> None:
    files = FaultyFiles()
    store = opener(files=files, scrub_bytes_per_second=2**30)
    store.append(draft(b"x" * 8000))
    store.confirm(store.commit())
    files.failing = {"pwrite": errno.ENOSPC, "pwritev": errno.ENOSPC}
    store.append(draft(b"y" * 8000))
    store.append(draft(b"y" * 8000))
    with pytest.raises(StoreFull):
        store.confirm(store.commit())
    files.failing = {}
    assert len(store.segments) == 2
    store.integrity.scrub.run_round_blocking()
    assert store.damage.all() == []
