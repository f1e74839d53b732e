from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.errors import StoreFull
from rocketpost.store import descriptors
from rocketpost.store.descriptors import SPARES, cache_count_max, with_spares
from rocketpost.store.files import RealFiles
from rocketpost.store.topic_deletion import QueueDeletion

from .conftest import Opener, draft
from .test_message_store import bodies


def no_more() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class ShortFiles(RealFiles):
    """Real files of which some cannot be opened for want of descriptors."""

    def __init__(self) -> None:
        self.short = ""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        if self.short and self.short in path:
            raise no_more()
        return super().open(path, write=write, create=create)


@pytest.fixture
def spares() -> Iterator[None]:
    SPARES.hold(2)
    yield
    SPARES.release_all()


@pytest.mark.usefixtures("spares")
def test_an_open_that_finds_no_descriptor_gets_a_spare_one() -> None:
    tries = 0

    def call() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise no_more()
        return "open"

    assert with_spares(call) == "open"
    assert SPARES.missing == 2
    SPARES.refill()
    assert SPARES.missing == 0


@pytest.mark.usefixtures("spares")
def test_spares_come_back_when_a_file_is_closed(tmp_path: Path) -> None:
    files = RealFiles()
    fd = files.open(str(tmp_path / "a"), create=True)
    assert SPARES.release_one()
    files.close(fd)
    assert SPARES.missing == 0


@pytest.mark.usefixtures("spares")
def test_other_errors_release_no_spare(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFiles().open(str(tmp_path / "none"))
    assert SPARES.missing == 0


def test_without_spares_the_shortage_is_an_error() -> None:
    def call() -> None:
        raise no_more()

    with pytest.raises(OSError, match="Too many open files"):
        with_spares(call)


@pytest.mark.parametrize(("limit", "count"), [(1024, 128), (1_000_000, 256), (32, 8), (-1, 256)])
def test_caches_are_sized_by_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, count: int
) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (limit, limit))
    assert cache_count_max(256) == count


def test_a_roll_without_descriptors_is_refused_and_works_later(opener: Opener) -> None:
    """It used to break the store: the new segment was made, and then could not be opened."""
    files = ShortFiles()
    store = opener(files=files)
    store.append(draft(b"x" * 8000))
    store.confirm(store.commit())
    store._allocator.close_blocking()  # the segment made ahead goes with it
    files.short = "commitlog"
    store.append(draft(b"y" * 7000))  # fits
    store.confirm(store.commit())
    with pytest.raises(StoreFull, match="Too many open files"):
        store.append(draft(b"z" * 8000))
    assert not store.broken
    files.short = ""
    store.append(draft(b"z" * 8000))
    store.confirm(store.commit())
    assert [body[:1] for body in bodies(store)] == [b"x", b"y", b"z"]


def test_a_segment_is_written_with_the_descriptor_that_it_was_made_with(opener: Opener) -> None:
    files = ShortFiles()
    store = opener(files=files)
    store.append(draft(b"x" * 8000))
    store.confirm(store.commit())
    files.short = "commitlog"
    store.append(draft(b"y" * 8000))  # rolls into the segment made ahead
    store.confirm(store.commit())
    assert not store.broken
    files.short = ""
    assert [body[:1] for body in bodies(store)] == [b"x", b"y"]


def test_a_sync_without_descriptors_is_tried_again(opener: Opener) -> None:
    files = ShortFiles()
    store = opener(files=files)
    store.append(draft(b"one"))
    store.commit()
    last = store.segments.last
    assert last is not None
    last.close_descriptor()
    files.short = "commitlog"
    with pytest.raises(StoreFull, match="no file descriptors left"):
        store._flusher.flush_blocking()
    assert not store.broken
    files.short = ""
    store._flusher.flush_blocking()
    assert store._flusher.durable == store.end_position


def test_queues_that_cannot_be_saved_for_want_of_descriptors_do_not_stop_sends(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ShortFiles()
    store = opener(files=files)
    store.append(draft(b"one"))
    store.confirm(store.commit())
    files.short = "consumequeue"
    store._checkpointer._save_or_report()
    assert store.writable
    assert not store.broken
    monkeypatch.setattr("rocketpost.store.checkpointer._PATIENCE_SECONDS", 0.0)
    store._checkpointer._save_or_report()
    assert not store.writable  # it lasts: what a restart would have to read again grows
    assert not store.broken
    files.short = ""
    store._checkpointer._save_or_report()
    assert store.writable


def test_segments_that_are_written_keep_no_descriptor(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opener()
    for _ in range(12):
        store.append(draft(b"x" * 8000))
        store.confirm(store.commit())
    assert len(bodies(store)) == 12
    store.save_blocking()
    monkeypatch.setattr("rocketpost.store.cleaning._MAPS_MAX", 2)
    before = len(os.listdir("/proc/self/fd"))
    store.cleaning.apply(store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=5))
    assert len(os.listdir("/proc/self/fd")) < before - 8
    assert len(bodies(store)) == 12
    store.append(draft(b"more"))
    store.confirm(store.commit())


def test_the_limit_is_the_one_of_this_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert cache_count_max(10**9) == max(8, soft // 8) or soft < 0


def test_a_topic_is_deleted_although_the_checkpoint_must_wait(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    def checkpoint() -> None:
        raise StoreFull("there are no file descriptors left")

    store = opener()
    store.append(draft())
    store.confirm(store.commit())
    store.save_blocking()
    store.delete_queues("TopicA")
    QueueDeletion(store._parts.topic_deleter, checkpoint=checkpoint).finish_blocking()
    assert caplog.messages[-1].startswith("checkpoint not updated after a deletion")
    assert not list((opener.root / "dropped").iterdir())
    opener.crash(store)
    assert opener().queues_of("TopicA") == []
