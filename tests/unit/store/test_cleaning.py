from __future__ import annotations

import errno
import logging
import os

import pytest

from rocketpost.store.files import DiskUsage, RealFiles
from rocketpost.store.message_store import MessageStore

from .conftest import Opener, Roomy, draft
from .test_message_store import bodies

HOUR_MS = 3_600_000


def fill(store: MessageStore, count: int = 40) -> None:
    for number in range(count):
        properties = b"KEYS\x01k%d\x02" % number
        store.append(
            draft(
                b"%d" % number * 1000,
                queue_id=number % 2,
                properties=properties,
                keys=(f"k{number}",),
            )
        )
        store.confirm(store.commit())


def age(opener: Opener, count: int) -> None:
    """Make the oldest segments look as if they were written four days ago."""
    old = opener.clock.ms / 1000 - 96 * 3600
    names = sorted(p for p in (opener.root / "commitlog").iterdir() if p.is_file())
    for path in names:
        os.utime(path, (opener.clock.ms / 1000, opener.clock.ms / 1000))
    for path in names[:count]:
        os.utime(path, (old, old))


def clean(opener: Opener, store: MessageStore, *, hour: int = 4) -> int:
    plan = store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=hour)
    store.cleaning.apply(plan)
    while store.cleaning.trim_queues(1):
        pass
    return store.cleaning.unlink_blocking()


def test_expired_segments_are_deleted_and_queues_and_index_follow(opener: Opener) -> None:
    store = opener(queue_file_bytes=100)
    fill(store)
    store.save_blocking()
    age(opener, 2)
    held = store.view(0, 20)
    assert clean(opener, store, hour=5) == 0
    assert clean(opener, store) > 2
    assert store.first_position == 2 * 16384
    assert held is not None
    assert len(bytes(held)) == 20
    assert store.view(0, 20) is None
    before = bodies(store), bodies(store, queue_id=1)
    assert 0 < len(before[0]) < 20
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.first > 5
    assert queue.end == 20
    assert store.record_at(queue.entry(queue.first)[0]) is not None  # type: ignore[index]
    opener.crash(store)
    store = opener(queue_file_bytes=100)
    assert (bodies(store), bodies(store, queue_id=1)) == before
    assert store.first_position == 2 * 16384
    assert store.append(draft()).queue_offset == 20


def test_segments_that_the_checkpoint_needs_stay(opener: Opener) -> None:
    store = opener()
    fill(store)
    age(opener, 9)
    assert clean(opener, store) == 0
    assert store.first_position == 0
    store.save_blocking()
    assert clean(opener, store) > 0


def test_a_queue_that_cannot_be_read_keeps_no_expired_segment(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Roomy):
        unreadable = ""

        def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
            if self.unreadable and self.unreadable in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().open(path, write=write, create=create)

    files = Failing()
    store = opener(files=files, queue_file_bytes=100)
    fill(store, 300)
    store.save_blocking()
    age(opener, 2)
    files.unreadable = "TopicA/0/"
    assert clean(opener, store) >= 2
    names = [path.name for path in (opener.root / "commitlog").iterdir() if path.is_file()]
    assert int(min(names)) == store.first_position == 2 * 16384
    queues = store.queues_of("TopicA")
    assert (queues[0].first, queues[1].first > 0) == (0, True)
    assert "cannot be read" in caplog.text
    files.unreadable = ""
    age(opener, 1)
    assert clean(opener, store) > 1
    assert queues[0].first > 0


@pytest.mark.parametrize("call", ["unlink", "fsync_dir"])
def test_segments_that_could_not_be_unlinked_leave_no_gap(opener: Opener, call: str) -> None:
    class Failing(Roomy):
        is_failing = False

        def unlink(self, path: str) -> None:  # type: ignore[override]
            self._fail_at("unlink", path)
            os.unlink(path)

        def fsync_dir(self, path: str) -> None:
            self._fail_at("fsync_dir", path)
            super().fsync_dir(path)

        def _fail_at(self, name: str, path: str) -> None:
            if self.is_failing and name == call and "/commitlog" in path:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    files = Failing()
    store = opener(files=files)
    fill(store, 100)
    store.save_blocking()
    age(opener, 2)
    files.is_failing = True
    with pytest.raises(OSError, match="open files"):
        clean(opener, store)
    files.is_failing = False
    age(opener, 4)
    assert clean(opener, store) > 0
    first = store.first_position
    assert first >= 4 * 16384
    opener.crash(store)
    store = opener()
    assert store.first_position == first


def test_segments_that_expire_during_an_unlink_are_no_loss_at_the_next_start(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """A round may begin while the thread of one that was cancelled still unlinks."""

    class Busy(Roomy):
        def unlink(self, path: str) -> None:  # type: ignore[override]
            os.unlink(path)
            if "/commitlog/" in path and store.first_position < 4 * 16384:
                age(opener, 3)  # of those that are left
                plan = store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=4)
                store.cleaning.apply(plan)

    store = opener(files=Busy())
    fill(store, 100)
    store.save_blocking()
    age(opener, 2)
    clean(opener, store)
    opener.crash(store)
    store = opener()
    assert store.first_position == 2 * 16384
    assert "lost" not in caplog.text
    clean(opener, store)
    assert store.first_position == 4 * 16384


def test_the_last_segment_stays(opener: Opener) -> None:
    store = opener()
    fill(store, 3)
    store.save_blocking()
    age(opener, 9)
    assert clean(opener, store) == 0


def test_an_idle_queue_whose_messages_expired_continues_its_offsets(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"idle", queue_id=7))
    fill(store)
    store.save_blocking()
    age(opener, 1)
    clean(opener, store)
    queue = store.queue("TopicA", 7)
    assert queue is not None
    assert queue.first == queue.end == 1
    store.close_blocking()
    store = opener()
    assert store.append(draft(b"again", queue_id=7)).queue_offset == 1


def test_a_disk_nearly_full_refuses_appends(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    class Nearly(RealFiles):
        used = 95

        def usage(self, path: str) -> DiskUsage:
            return DiskUsage(100, self.used, 100 - self.used)

    files = Nearly()
    store = opener(files=files)
    fill(store, 2)
    for _ in range(3):
        clean(opener, store)
    assert "95%" in (store.why_not_writable or "")
    assert store.cleaning.disk_ratio == 0.95
    [begins] = caplog.messages
    assert begins.startswith("messages are refused: reason=the disk is 95% full, over 90%")
    files.used = 20
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clean(opener, store)
    assert store.writable
    assert caplog.messages[1:] == ["messages are accepted again: disk_used=20%"]


def test_a_topic_deleted_while_queues_are_trimmed_is_left_alone(opener: Opener) -> None:
    store = opener()
    fill(store)
    store.save_blocking()
    age(opener, 1)
    store.cleaning.apply(store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=4))
    store.delete_queues("TopicA").finish_blocking()
    assert not store.cleaning.trim_queues()
    store.cleaning.unlink_blocking()


def test_held_segments_stay_until_they_are_released(opener: Opener) -> None:
    store = opener(queue_file_bytes=100)
    fill(store)
    store.save_blocking()
    age(opener, 2)
    queue = store.queue("TopicA", 0)
    assert queue is not None
    needed = queue.position_from(0)
    assert needed == 0
    assert store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=4, held=needed).to_delete == ()
    beyond = queue.first_at(2 * 16384)
    assert queue.position_from(beyond - 1) < 2 * 16384 <= queue.position_from(beyond)  # type: ignore[operator]
    let_go = store.cleaning.plan_blocking(
        now_ms=opener.clock.ms, hour=4, held=queue.position_from(beyond)
    )
    assert let_go.to_delete == (0, 16384)
    assert queue.position_from(queue.end) is None
    opener.crash(store)
