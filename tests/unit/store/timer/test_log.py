"""The timer log: units in files of one size, with a filled end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.timer.log import DEFAULT, UNIT_BYTES, TimerLog, Unit, decode_unit

FILE_BYTES = 300  # holds five units and a blank of 40 bytes


def opened(path: Path, end: int | None = None) -> TimerLog:
    log = TimerLog(RealFiles(), str(path), file_bytes=FILE_BYTES)
    log.load_blocking()
    if end is not None:
        log.truncate_blocking(end)
    return log


def unit(number: int) -> Unit:
    return Unit(-1, DEFAULT, 1000, 5000, number * 100, 99, 7, 6123)


def place(log: TimerLog, units: list[Unit]) -> list[int]:
    places, at = [], log.end
    for _ in units:
        at = log.place(at)
        places.append(at)
        at += UNIT_BYTES
    log.append(units)
    return places


def test_units_continue_in_the_next_file(tmp_path: Path) -> None:
    log = opened(tmp_path / "timerlog")
    units = [unit(number) for number in range(1, 12)]
    places = place(log, units)
    assert places[:7] == [0, 52, 104, 156, 208, 300, 352]
    assert [log.unit(at) for at in places] == units
    assert [at for at, _ in log.scan(0, log.end)] == places
    names = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert names == [f"{start:020d}" for start in (0, 300, 600)]
    blank = (tmp_path / "timerlog" / names[0]).read_bytes()[260:276]
    assert blank.hex() == "00000028" + "00" * 8 + "cbd43194"


def test_bytes_after_the_end_are_zero(tmp_path: Path) -> None:
    log = opened(tmp_path / "l")
    place(log, [unit(number) for number in range(1, 8)])
    log.truncate_blocking(104)
    assert [at for at, _ in log.scan(0, 900)] == [0, 52]
    assert log.unit(104) is None
    place(log, [unit(9)])
    log.close()
    again = opened(tmp_path / "l")
    assert [found.position for _, found in again.scan(0, again.end)] == [100, 200, 900]


def test_only_files_whose_messages_all_expired_are_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path / "l")
    place(log, [unit(number) for number in range(1, 12)])
    assert log.find_finished_blocking(500) == []
    log.expire(log.find_finished_blocking(501))
    assert log.has_expired
    assert len(list((tmp_path / "l").iterdir())) == 3
    log.unlink_expired_blocking()
    assert not log.has_expired
    assert not (tmp_path / "l" / f"{0:020d}").exists()
    assert log.first == 300
    assert log.unit(0) is None
    assert log.find_finished_blocking(10**9) == [300]  # never the last
    log.take_unsynced()


@pytest.mark.parametrize("call", ["unlink", "fsync_dir"])
def test_a_file_that_could_not_be_unlinked_leaves_no_gap(tmp_path: Path, call: str) -> None:
    class Failing(RealFiles):
        is_failing = False

        def unlink(self, path: str) -> None:  # type: ignore[override]
            self._fail_at("unlink")
            os.unlink(path)

        def fsync_dir(self, path: str) -> None:
            self._fail_at("fsync_dir")
            super().fsync_dir(path)

        def _fail_at(self, name: str) -> None:
            if self.is_failing and name == call:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = Failing()
    log = TimerLog(files, str(tmp_path / "l"), file_bytes=FILE_BYTES)
    places = place(log, [unit(number) for number in range(1, 18)])
    files.is_failing = True
    log.expire([0])
    with pytest.raises(OSError, match="error"):
        log.unlink_expired_blocking()
    files.is_failing = False
    log.expire([300])
    log.unlink_expired_blocking()
    log.close()
    again = opened(tmp_path / "l")
    assert again.first == 600
    assert [at for at, _ in again.scan(0, again.end)] == places[10:]


def test_the_next_save_syncs_the_files_of_a_failed_one(tmp_path: Path) -> None:
    log = opened(tmp_path / "l")
    place(log, [unit(1)])
    first = log.take_unsynced()
    assert first.has_new_file
    assert log.take_unsynced() == first  # nothing came of the first
    log.mark_saved()
    assert log.take_unsynced() == ([], False)
    place(log, [unit(2)])
    assert log.take_unsynced() == (first.descriptors, False)
    log.close()


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "l").mkdir()
    (tmp_path / "l" / f"{0:020d}").write_bytes(bytes(301))
    with pytest.raises(StoreError, match="mappedFileSizeTimerLog"):
        opened(tmp_path / "l")


def test_damaged_units_are_none() -> None:
    good = unit(1).encode()
    assert decode_unit(good) == unit(1)
    assert decode_unit(good[:-1]) is None
    assert decode_unit(bytes(52)) is None
    assert decode_unit(good[:12] + b"\x00\x00\x00\x10" + good[16:]) is None


def test_a_file_stays_while_any_of_its_units_may_be_needed(tmp_path: Path) -> None:
    log = opened(tmp_path / "l")
    # The last unit of the first file is of an old message, whose slot was chained anew.
    place(log, [unit(1), unit(8), unit(9), unit(3), unit(2), unit(10)])
    assert log.find_finished_blocking(300) == []
    assert log.find_finished_blocking(900) == []
    assert log.find_finished_blocking(901) == [0]
    log.close()
