"""The wheel: slots by time, changes in memory until they are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.timer.wheel import EMPTY, SLOT_BYTES, SLOT_COUNT, Slot, TimerWheel

P = 1000
T = 1_700_000_000_000


def opened(path: Path, slot_count: int = 64) -> TimerWheel:
    wheel = TimerWheel(RealFiles(), str(path), precision_ms=P, slot_count=slot_count)
    if not wheel.open_blocking():
        wheel.create_blocking()
    return wheel


def test_the_file_has_rocketmqs_size_and_takes_no_room(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "timerwheel", SLOT_COUNT)
    wheel.close()
    found = (tmp_path / "timerwheel").stat()
    assert found.st_size == 38_707_200
    assert found.st_blocks * 512 < 1_000_000


def test_a_slot_of_another_time_is_empty(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "w")
    wheel.put(T, Slot(0, 52, 2))
    assert wheel.get(T) == Slot(0, 52, 2)
    assert wheel.get(T + 64 * P) == EMPTY
    wheel.clear(T)
    assert wheel.get(T) == EMPTY


def test_changes_reach_the_file_when_they_are_written(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "w")
    for at in (0, 1, 2, 9):
        wheel.put(T + at * P, Slot(at, at, 1))
    changes = wheel.take_changes()
    assert not any((tmp_path / "w").read_bytes())
    wheel.put(T + P, Slot(5, 6, 2))
    wheel.write_blocking(changes)
    assert wheel.get(T) == Slot(0, 0, 1)
    wheel.mark_saved()
    assert wheel.get(T + P) == Slot(5, 6, 2)
    assert len(changes) == 4
    wheel.close()
    again = opened(tmp_path / "w")
    assert again.get(T + P) == Slot(1, 1, 1)
    assert again.get(T + 9 * P) == Slot(9, 9, 1)
    assert dict(again.used_slots()) == {T + at * P: Slot(at, at, 1) for at in (0, 1, 2, 9)}


def test_a_save_that_failed_is_in_the_next(tmp_path: Path) -> None:
    wheel = opened(tmp_path / "w")
    wheel.put(T, Slot(1, 1, 1))
    wheel.take_changes()
    wheel.put(T + P, Slot(2, 2, 1))
    assert len(wheel.take_changes()) == 2


@given(
    used=st.sets(st.integers(0, 63), max_size=6),
    saved=st.sets(st.integers(0, 63), max_size=6),
    begin=st.integers(0, 63),
)
def test_the_next_used_slot(
    tmp_path_factory: pytest.TempPathFactory, used: set[int], saved: set[int], begin: int
) -> None:
    wheel = opened(tmp_path_factory.mktemp("wheel") / "w")
    for at in saved:
        wheel.put(T + at * P, Slot(0, 0, 1))
    wheel.write_blocking(wheel.take_changes())
    wheel.mark_saved()
    for at in used:
        wheel.put(T + at * P, Slot(0, 0, 1))
    later = [at for at in used | saved if at >= begin]
    expected = T + min(later) * P if later else None
    assert wheel.next_used(T + begin * P, count=64 - begin) == expected
    wheel.close()


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(SLOT_BYTES))
    wheel = TimerWheel(RealFiles(), str(tmp_path / "w"), precision_ms=P)
    with pytest.raises(StoreError, match="32 bytes instead"):
        wheel.open_blocking()
