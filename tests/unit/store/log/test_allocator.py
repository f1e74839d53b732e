from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rocketpost.errors import StoreFull
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.log.allocator import RETRY_SECONDS, Allocator


class Counting(RealFiles):
    made = 0
    full = False

    def fallocate(self, fd: int, size: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.made += 1
        super().fallocate(fd, size)


@pytest.fixture
def files() -> Counting:
    return Counting()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "commitlog").mkdir()
    return Layout(str(tmp_path))


def wait_until_ready(allocator: Allocator) -> None:
    """Do what the thread was asked for, as it may do at any time."""
    allocator._make_wanted()


def test_the_next_segment_is_made_ahead(files: Counting, layout: Layout, tmp_path: Path) -> None:
    allocator = Allocator(files, layout, segment_bytes=4096)
    allocator.start()
    first = allocator.take(0)
    assert (first.start, first.end) == (0, 4096)
    wait_until_ready(allocator)
    assert files.made == 2
    second = allocator.take(4096)
    assert second.start == 4096
    assert (tmp_path / "commitlog" / f"{4096:020d}").stat().st_size == 4096
    allocator.close_blocking()
    first.close()
    second.close()
    names = sorted(p.name for p in (tmp_path / "commitlog").iterdir())
    assert names == [f"{0:020d}", f"{4096:020d}", "allocating"]


def test_a_segment_in_use_is_never_made_again(files: Counting, layout: Layout) -> None:
    allocator = Allocator(files, layout, segment_bytes=4096)
    allocator.start()
    segment = allocator.take(0)
    segment.write(b"data", 0)
    wait_until_ready(allocator)
    allocator.take(4096).close()
    wait_until_ready(allocator)
    allocator.take(8192).close()
    allocator.prepare(0)
    wait_until_ready(allocator)
    assert bytes(segment.view()[:4]) == b"data"
    allocator.close_blocking()
    segment.close()


def test_no_room_is_store_full_and_leaves_nothing(
    files: Counting, layout: Layout, tmp_path: Path
) -> None:
    allocator = Allocator(files, layout, segment_bytes=4096)
    allocator.start()
    files.full = True
    allocator.prepare(0)
    wait_until_ready(allocator)
    with pytest.raises(StoreFull, match="No space left"):
        allocator.take(0)
    assert [p.name for p in (tmp_path / "commitlog").rglob("0*")] == []
    files.full = False
    allocator.take(0).close()
    allocator.close_blocking()


def test_a_refusal_is_reported_until_the_thread_has_made_the_segment(
    files: Counting, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str | None] = []
    allocator = Allocator(files, layout, segment_bytes=4096, set_unallocated=reasons.append)
    files.mkdir(layout.allocating)
    files.full = True
    allocator.prepare(0)
    assert allocator._make_wanted() is None
    assert reasons == [], "no message needed the segment yet"
    for _ in range(2):
        with pytest.raises(StoreFull):
            allocator.take(0)
    assert allocator._make_wanted() == RETRY_SECONDS
    assert [each is not None and "No space left" in each for each in reasons] == [True, True]
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]
    files.full = False
    assert allocator._make_wanted() is None
    assert reasons[2:] == [None]
    allocator.take(0).close()
    assert files.made == 1
    assert len(reasons) == 3
    allocator.close_blocking()


def test_the_next_append_or_a_cut_of_the_log_ends_a_refusal(
    files: Counting, layout: Layout
) -> None:
    reasons: list[str | None] = []
    allocator = Allocator(files, layout, segment_bytes=4096, set_unallocated=reasons.append)
    files.mkdir(layout.allocating)
    for end in (lambda: allocator.take(4096).close(), lambda: allocator.reset(4096)):
        files.full = True
        with pytest.raises(StoreFull):
            allocator.take(4096)
        files.full = False
        end()
        assert reasons.pop() is None
    allocator.close_blocking()


def test_files_that_a_crash_left_unfinished_are_removed(
    files: Counting, layout: Layout, tmp_path: Path
) -> None:
    (tmp_path / "commitlog" / "allocating").mkdir()
    (tmp_path / "commitlog" / "allocating" / f"{0:020d}").write_bytes(b"x")
    allocator = Allocator(files, layout, segment_bytes=4096)
    allocator.start()
    assert not list((tmp_path / "commitlog" / "allocating").iterdir())
    allocator.close_blocking()
