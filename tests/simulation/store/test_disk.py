"""The simulated disk must itself be right, or the tests on it prove nothing."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.testing.sim.disk import SimulatedDisk
from rocketpost.testing.sim.inode import PAGE


def made(disk: SimulatedDisk, path: str, data: bytes) -> int:
    fd = disk.open(path, create=True)
    disk.pwrite(fd, data, 0)
    return fd


def cut(disk: SimulatedDisk, keep: float = 0.0) -> SimulatedDisk:
    return disk.after_power_cut(random.Random(1), keep=keep)


def test_nothing_unsynced_need_survive() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    disk.fsync_dir("/")
    made(disk, "/d/unsynced", b"x")
    fd = made(disk, "/d/named", b"x")
    disk.fdatasync(fd)
    disk.fsync_dir("/d")
    disk.pwrite(fd, b"later", 0)
    nameless = made(disk, "/d/nameless", b"x")
    disk.fdatasync(nameless)
    left = cut(disk)
    assert left.listdir("/d") == ["named", "unsynced"]
    assert left.read_bytes("/d/named") == b"x"
    assert left.read_bytes("/d/unsynced") == b""
    with pytest.raises(OSError, match="off"):
        disk.stat("/d")


def test_everything_unsynced_may_survive() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d/e")
    made(disk, "/d/e/f", b"abc")
    disk.rename("/d/e/f", "/d/g")
    left = cut(disk, keep=1.0)
    assert left.read_bytes("/d/g") == b"abc"
    assert left.stat("/d/e/f") is None


def test_a_killed_process_loses_nothing() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    made(disk, "/d/f", b"abc")
    assert disk.after_kill().read_bytes("/d/f") == b"abc"


def test_pages_survive_one_by_one() -> None:
    seen = set()
    for seed in range(60):
        disk = SimulatedDisk()
        fd = made(disk, "/f", b"a" * PAGE * 3)
        disk.fdatasync(fd)
        disk.fsync_dir("/")
        disk.pwrite(fd, b"b" * PAGE * 3, 0)
        left = disk.after_power_cut(random.Random(seed), keep=0.5).read_bytes("/f")
        assert all(
            left[at : at + PAGE] in (b"a" * PAGE, b"b" * PAGE) for at in range(0, 3 * PAGE, PAGE)
        )
        seen.add(left[::PAGE])
    assert len(seen) == 8


def test_a_rename_is_whole_or_undone() -> None:
    for seed in range(40):
        disk = SimulatedDisk()
        disk.fdatasync(made(disk, "/new", b"new"))
        disk.fdatasync(made(disk, "/old", b"old"))
        disk.fsync_dir("/")
        disk.rename("/new", "/old")
        left = disk.after_power_cut(random.Random(seed), keep=0.5)
        both = left.stat("/new") is not None
        assert left.read_bytes("/old") == (b"old" if both else b"new")


def test_pages_dropped_by_a_failed_sync_are_not_saved_by_the_next() -> None:
    disk = SimulatedDisk()
    fd = made(disk, "/f", b"a" * PAGE * 2)
    disk.fsync_dir("/")
    disk.fault = lambda _number, name, _path: errno.EIO if name == "fdatasync" else None
    with pytest.raises(OSError, match="error"):
        disk.fdatasync(fd)
    disk.fault = None
    disk.pwrite(fd, b"b" * PAGE, PAGE)
    disk.fdatasync(fd)
    assert disk.read_bytes("/f") == b"a" * PAGE + b"b" * PAGE
    assert cut(disk).read_bytes("/f") == bytes(PAGE) + b"b" * PAGE


def test_a_failed_write_may_have_written_some_bytes() -> None:
    disk = SimulatedDisk(
        fault=lambda _number, name, _path: errno.ENOSPC if name == "pwrite" else None
    )
    fd = disk.open("/f", create=True)
    with pytest.raises(OSError, match="space"):
        disk.pwrite(fd, b"abcd", 0)
    assert disk.read_bytes("/f") == b"ab"


def test_maps_see_writes_and_truncation() -> None:
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.fallocate(fd, 8)
    view = disk.map(fd, 8)
    disk.pwrite(fd, b"abcdefgh", 0)
    assert bytes(view) == b"abcdefgh"
    disk.ftruncate(fd, 3)
    disk.fallocate(fd, 8)
    assert bytes(view) == b"abc\0\0\0\0\0"
    disk.map_writable(fd, 8)[0:1] = b"z"
    assert disk.pread(fd, 3, 0) == b"zbc"


def test_room_is_bounded() -> None:
    disk = SimulatedDisk(capacity=100)
    fd = disk.open("/f", create=True)
    with pytest.raises(OSError, match="space"):
        disk.fallocate(fd, 101)
    disk.fallocate(fd, 60)
    assert disk.usage("/").ratio == 0.6


def test_a_lock_is_held_until_closed() -> None:
    disk = SimulatedDisk()
    fd = disk.lock("/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")
    disk.close(fd)
    disk.close(disk.lock("/lock"))
    assert disk.descriptor_count == 0


def test_the_simulated_disk_behaves_like_a_real_disk(
    seed: int, rng: random.Random, tmp_path: Path
) -> None:
    """The same calls, in an order that the seed chooses, on both; answers and errors agree."""
    disk, real = SimulatedDisk(), RealFiles()
    disk.mkdir(str(tmp_path))
    names = ["a", "b", "d/a", "d/b", "d/e/a"]
    for step in range(120):
        path = str(tmp_path / rng.choice(names))
        other = str(tmp_path / rng.choice(names))
        folder = str(tmp_path / rng.choice(["d", "d/e", "f"]))
        data = rng.randbytes(rng.randrange(1, 40))
        offset = rng.randrange(50)

        def with_file(
            files: FileSystem,
            action: Callable[[FileSystem, int], object],
            path: str = path,
            create: bool = rng.random() < 0.5,
        ) -> object:
            fd = files.open(path, write=True, create=create)
            try:
                return action(files, fd)
            finally:
                files.close(fd)

        def use(
            files: FileSystem,
            kind: int = rng.randrange(12),
            path: str = path,
            other: str = other,
            folder: str = folder,
            data: bytes = data,
            offset: int = offset,
            with_file: Callable[..., object] = with_file,
        ) -> object:
            match kind:
                case 0:
                    return with_file(files, lambda f, fd: f.pwrite(fd, data, offset))
                case 1:
                    return with_file(files, lambda f, fd: f.pwritev(fd, [data, data], offset))
                case 2:
                    return with_file(files, lambda f, fd: f.pread(fd, 30, offset))
                case 3:
                    return with_file(files, lambda f, fd: f.ftruncate(fd, offset))
                case 4:
                    return with_file(files, lambda f, fd: f.fallocate(fd, offset + 1))
                case 5:
                    return with_file(files, lambda f, fd: f.fdatasync(fd))
                case 6:
                    return files.mkdir(folder)
                case 7:
                    return files.rmdir(folder)
                case 8:
                    return files.unlink(path)
                case 9:
                    return files.rename(path, other)
                case 10:
                    return files.listdir(folder)
                case _:
                    return files.fsync_dir(folder)

        assert answer(disk, use) == answer(real, use), f"step {step}"
        for name in names:
            ours, theirs = disk.stat(str(tmp_path / name)), real.stat(str(tmp_path / name))
            assert (ours is None) == (theirs is None)
            assert ours is None or theirs is None or ours.size == theirs.size


def answer(files: FileSystem, use: Callable[[FileSystem], object]) -> object:
    try:
        return use(files)
    except OSError as error:
        return error.errno
