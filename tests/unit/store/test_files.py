from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketpost.store.files import Buffer, DiskUsage, RealFiles, make_directory, write_all


def test_a_file_is_written_read_mapped_and_removed(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path / "a" / "f")
    files.mkdir(str(tmp_path / "a"))
    fd = files.open(path, create=True)
    files.fallocate(fd, 8192)
    assert files.pwritev(fd, [b"ab", b"cd"], 4096) == 4
    files.fdatasync(fd)
    view = files.map(fd, 8192)
    files.close(fd)
    assert bytes(view[4096:4100]) == b"abcd"
    assert view.readonly
    found = files.stat(path)
    assert found is not None
    assert (found.size, found.is_directory) == (8192, False)
    assert files.listdir(str(tmp_path / "a")) == ["f"]
    files.rename(path, str(tmp_path / "g"))
    files.fsync_dir(str(tmp_path))
    files.unlink(str(tmp_path / "g"))
    files.rmdir(str(tmp_path / "a"))
    assert files.listdir(str(tmp_path)) == []
    assert bytes(view[4096:4100]) == b"abcd"


def test_a_missing_path_is_none(tmp_path: Path) -> None:
    assert RealFiles().stat(str(tmp_path / "x")) is None
    assert RealFiles().listdir(str(tmp_path / "x")) == []
    with pytest.raises(FileNotFoundError):
        RealFiles().open(str(tmp_path / "x"))


def test_a_lock_holds_against_the_same_process_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path / "lock")
    fd = files.lock(path)
    with pytest.raises(BlockingIOError):
        files.lock(path)
    files.close(fd)
    files.close(files.lock(path))


def test_room_is_counted_as_df_does(tmp_path: Path) -> None:
    usage = RealFiles().usage(str(tmp_path))
    assert 0 < usage.used_bytes < usage.total_bytes
    assert DiskUsage(100, 60, 20).ratio == 0.75
    assert DiskUsage(0, 0, 0).ratio == 0.0


def test_a_part_taken_is_followed_by_the_rest(tmp_path: Path) -> None:
    class Reluctant(RealFiles):
        def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
            return super().pwrite(fd, memoryview(data)[:3], offset)

    files, path = Reluctant(), str(tmp_path / "f")
    fd = files.open(path, create=True)
    write_all(files, fd, b"0123456789", 2)
    assert files.pread(fd, 20, 0) == b"\0\0" + b"0123456789"
    files.close(fd)


def test_directories_are_made_durable_from_the_top(tmp_path: Path) -> None:
    class Noting(RealFiles):
        def __init__(self) -> None:
            self.calls: list[tuple[str, str]] = []

        def mkdir(self, path: str) -> None:
            self.calls.append(("mkdir", path))
            super().mkdir(path)

        def fsync_dir(self, path: str) -> None:
            self.calls.append(("fsync_dir", path))
            super().fsync_dir(path)

    files = Noting()
    make_directory(files, f"{tmp_path}/a/b")
    assert files.calls == [
        ("mkdir", f"{tmp_path}/a"),
        ("fsync_dir", f"{tmp_path}"),
        ("mkdir", f"{tmp_path}/a/b"),
        ("fsync_dir", f"{tmp_path}/a"),
    ]
    make_directory(files, f"{tmp_path}/a/b")
    assert len(files.calls) == 4


def test_the_whole_file_system_can_be_synced(tmp_path: Path) -> None:
    assert RealFiles().sync_all(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        RealFiles().sync_all(str(tmp_path / "x"))


def test_the_parts_of_a_file_that_hold_data(tmp_path: Path) -> None:
    files = RealFiles()
    fd = files.open(str(tmp_path / "file"), create=True)
    size = 2**20
    try:
        files.ftruncate(fd, size)
        files.pwrite(fd, b"one", 2**18)
        files.pwrite(fd, b"two", 2**19)
        ranges = files.data_ranges(fd, 0, size)
        for at in (2**18, 2**19):
            assert any(begin <= at < end for begin, end in ranges)
        assert all(begin < end <= size for begin, end in ranges)
        assert all(at >= 2**19 + 3 for at, _ in files.data_ranges(fd, 2**19 + 3, size))
        assert files.data_ranges(fd, size, size) == []
    finally:
        files.close(fd)
    assert files.data_ranges(fd, 5, 9) == [(5, 9)]  # who does not know says: all


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs Linux")
def test_bytes_that_left_the_page_cache_are_not_in_memory(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path / "file")
    Path(path).write_bytes(bytes(1024 * 1024))
    assert files.is_cached(path, 0, 1024 * 1024)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    is_cold = not files.is_cached(path, 0, 1024 * 1024)
    if not is_cold:
        os.close(fd)
        pytest.skip("this file system keeps its pages")
    assert os.read(fd, 1024 * 1024) == bytes(1024 * 1024)
    os.close(fd)
    assert files.is_cached(path, 0, 1024 * 1024)
