from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from rocketpost.store.files import Buffer, RealFiles
from rocketpost.store.queue import files as queue_files
from rocketpost.store.queue.files import AHEAD_COUNT, ENTRY, ENTRY_BYTES, FILLER, QueueFiles

PER_FILE = 1000


class CountingFiles(RealFiles):
    """Counts reads."""

    reads = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, offset)


def entries(begin: int, end: int, mark: int = 0) -> bytes:
    return b"".join(ENTRY.pack(offset, 100 + mark, mark) for offset in range(begin, end))


@pytest.fixture
def files(tmp_path: Path) -> QueueFiles:
    made = QueueFiles(CountingFiles(), file_bytes=PER_FILE * ENTRY_BYTES)
    made.write(f"{tmp_path}/T/0", 0, entries(0, 1900))
    return made


def count_reads(files: QueueFiles) -> int:
    assert isinstance(files.files, CountingFiles)
    return files.files.reads


def test_entries_are_read_ahead_for_a_reader_that_goes_on(
    files: QueueFiles, tmp_path: Path
) -> None:
    directory = f"{tmp_path}/T/0"
    before = count_reads(files)
    for offset in range(0, AHEAD_COUNT, 32):
        found = files.read(directory, offset, 32, final_end=1900)
        assert found == entries(offset, offset + 32)
    assert count_reads(files) == before + 1


def test_single_entries_and_long_runs_are_not_read_ahead(files: QueueFiles, tmp_path: Path) -> None:
    directory = f"{tmp_path}/T/0"
    for _ in range(2):
        before = count_reads(files)
        assert files.read(directory, 40, 1, final_end=1900) == entries(40, 41)
        assert files.read(directory, 40, 600, final_end=1900) == entries(40, 640)
        assert count_reads(files) == before + 2


def test_entries_that_may_still_be_written_are_not_read_ahead(
    files: QueueFiles, tmp_path: Path
) -> None:
    directory = f"{tmp_path}/T/0"
    assert files.read(directory, 1880, 5, final_end=1890) == entries(1880, 1885)
    files.write(directory, 1890, entries(1890, 1900, 7))
    assert files.read(directory, 1885, 10, final_end=1900) == entries(1885, 1890) + entries(
        1890, 1895, 7
    )


@pytest.mark.parametrize("seed", range(20))
def test_readers_get_what_is_in_the_files(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = QueueFiles(RealFiles(), file_bytes=PER_FILE * ENTRY_BYTES)
    directories = [f"{tmp_path}/T/{number}" for number in range(3)]
    expected = {directory: bytearray() for directory in directories}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_files, "_AHEAD_QUEUES_MAX", 2)
        for _ in range(300):
            directory = rng.choice(directories)
            data = expected[directory]
            count = len(data) // ENTRY_BYTES
            act = rng.choice(["write", "read", "read", "read", "read", "mend", "cut", "remove"])
            offset = rng.randrange(count + 1)
            if act == "write":
                new = entries(count, count + rng.randrange(1, 300), rng.randrange(99))
                files.write(directory, count, new)
                data += new
            elif act == "read" and offset < count:
                size = min(rng.choice([1, 5, 32, 500]), count - offset)
                found = files.read(directory, offset, size, final_end=count)
                at = offset * ENTRY_BYTES
                assert found
                assert found == data[at : at + len(found)]
            elif act == "mend" and offset < count:
                entry = entries(offset, offset + 1, 1000 + rng.randrange(99))
                with files.writing:
                    files.overwrite_blocking(directory, offset, entry)
                data[offset * ENTRY_BYTES : (offset + 1) * ENTRY_BYTES] = entry
            elif act == "cut" and rng.random() < 0.3:
                files.truncate(directory, offset)
                del data[offset * ENTRY_BYTES :]
            elif act == "remove" and rng.random() < 0.1:
                files.forget_directory(directory)
                for start in files.starts(directory):
                    files.files.unlink(files.path(directory, start))
                data.clear()
    files.close()


def test_a_file_that_could_not_be_filled_is_filled_later(tmp_path: Path) -> None:
    class Full(RealFiles):
        is_full = True

        def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.pwrite(fd, data, offset)

    disk = Full()
    files = QueueFiles(disk, file_bytes=PER_FILE * ENTRY_BYTES)
    directory = f"{tmp_path}/T/0"
    with pytest.raises(OSError, match="No space"):
        files.write(directory, 700, entries(700, 702))
    disk.is_full = False
    files.write(directory, 700, entries(700, 702))
    assert files.read(directory, 0, 702) == FILLER * 700 + entries(700, 702)
    assert Path(files.path(directory, 0)).stat().st_size == PER_FILE * ENTRY_BYTES
    files.close()
