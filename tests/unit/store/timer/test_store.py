"""Saves of the timer's files that fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.files import Buffer, RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.timer.log import DEFAULT
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Item

NOW_MS = 1_700_000_000_250


class Failing(RealFiles):
    """Files of which one call fails."""

    call = ""
    code = 0

    def _check(self, call: str) -> None:
        if call == self.call:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self._check("open")
        return super().open(path, write=write, create=create)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
        self._check("pwrite")
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._check("fdatasync")
        super().fdatasync(fd)


def opened(root: Path, files: RealFiles) -> TimerStore:
    return TimerStore.open_blocking(
        Layout(str(root)),
        files,
        precision_ms=1000,
        log_file_bytes=4096,
        commit_log_end=10_000,
        now_ms=NOW_MS,
        position_of=lambda offset: 0,
        slot_count=64,
    )


def save(timers: TimerStore) -> None:
    timers.save_blocking(timers.prepare_save(commit_log_end=10_000, now_ms=NOW_MS))
    timers.mark_saved()


def add(timers: TimerStore) -> int:
    slot_ms = timers.slot_of(NOW_MS + 5000)
    timers.add([Item(slot_ms, NOW_MS + 5000, DEFAULT, 4096, 300, 7)], now_ms=NOW_MS)
    return slot_ms


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("open", errno.EMFILE),
        ("open", errno.ENFILE),
        ("pwrite", errno.ENOSPC),
        ("pwrite", errno.EDQUOT),
    ],
)
def test_a_save_that_lacked_room_or_descriptors_is_tried_again(
    tmp_path: Path, call: str, code: int
) -> None:
    files = Failing()
    timers = opened(tmp_path, files)
    slot_ms = add(timers)
    files.call, files.code = call, code
    with pytest.raises(OSError, match=os.strerror(code)):
        save(timers)
    files.call = ""
    assert timers.failure is None
    save(timers)
    timers.close()
    again = opened(tmp_path, files)
    assert again.wheel.get(slot_ms).waiting == 1
    again.close()


def test_nothing_is_saved_after_a_failed_sync(tmp_path: Path) -> None:
    files = Failing()
    timers = opened(tmp_path, files)
    slot_ms = add(timers)
    files.call, files.code = "fdatasync", errno.EIO
    for _ in range(2):
        with pytest.raises(StoreError, match="could not be saved"):
            save(timers)
        files.call = ""
    timers.close()
    again = opened(tmp_path, files)
    assert again.wheel.get(slot_ms).waiting == 0  # the topic is read again from there on
    again.close()
