from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.store.files import RealFiles
from rocketpost.store.log.segment import Segment
from rocketpost.store.recovery.extent import FILE_BYTES, Extent, ExtentFile, ExtentKeeper, read_boot

from ..conftest import Opener, draft


def test_a_saved_extent_is_read_back(tmp_path: Path) -> None:
    file = ExtentFile(RealFiles(), str(tmp_path / "extent"))
    assert file.load_blocking() is None
    file.write_from_thread(Extent(1, 2, 3))
    file.save_blocking(Extent(4, 5, 6))
    file.close()
    assert ExtentFile(RealFiles(), str(tmp_path / "extent")).load_blocking() == Extent(4, 5, 6)
    assert (tmp_path / "extent").stat().st_size == FILE_BYTES


@pytest.mark.parametrize("at", [0, 10, 20, 33])
def test_a_damaged_file_says_nothing(tmp_path: Path, at: int) -> None:
    path = tmp_path / "extent"
    file = ExtentFile(RealFiles(), str(path))
    file.save_blocking(Extent(4, 5, 6))
    file.close()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert ExtentFile(RealFiles(), str(path)).load_blocking() is None
    path.write_bytes(data[:at])
    assert ExtentFile(RealFiles(), str(path)).load_blocking() is None


def test_it_is_exact_after_each_sync_of_the_log(opener: Opener) -> None:
    store = opener()
    for _ in range(3):
        store.append(draft())
        store.confirm(store.commit())
        store.flush_blocking()
        extent = ExtentFile(RealFiles(), store.layout.extent).load_blocking()
        assert extent == Extent(0, store.end_position, 0, read_boot(RealFiles()))


def test_an_old_one_is_not_believed(opener: Opener) -> None:
    store = opener()
    for _ in range(100):
        store.append(draft(bytes(400)))
    store.confirm(store.commit())
    old = (opener.root / "extent").read_bytes()
    store.close_blocking()
    (opener.root / "extent").write_bytes(old)
    opener()


class Hooked:
    """Segments and queues of which another thread removes some while they are looked at."""

    def __init__(self) -> None:
        self.first = 0
        self.hook: Callable[[], None] | None = None

    def all_from_thread(self) -> list[Segment]:
        found = [Segment(RealFiles(), "", start=self.first, size=100)]
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return found

    def start_sum(self) -> int:
        return self.first


def test_an_older_state_never_replaces_a_newer_one(tmp_path: Path) -> None:
    store = Hooked()
    file = ExtentFile(RealFiles(), str(tmp_path / "extent"))
    keeper = ExtentKeeper(file, store, store, boot=b"boot no1")  # type: ignore[arg-type]
    cleaning = threading.Thread(target=keeper.save_blocking, args=(500,))

    def clean() -> None:
        store.first = 100
        cleaning.start()
        cleaning.join(0.1)  # it has to wait until the older state is written

    store.hook = clean
    keeper.note_from_thread(600)
    cleaning.join()
    file.close()
    assert file.load_blocking() == Extent(100, 600, 100, b"boot no1")
