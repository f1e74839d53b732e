"""The timer's checkpoint and journals, and the example of ``docs/formats/timer.md``."""

from __future__ import annotations

from pathlib import Path
from struct import pack, unpack_from
from zlib import crc32

import msgspec
import pytest

from rocketpost.kernel.hashing import string_hash
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.timer.checkpoint import (
    CLEAN,
    ExactFields,
    FileSum,
    JavaFields,
    Journal,
    decode_checkpoint,
    decode_journal,
    encode_checkpoint,
    encode_journal,
)
from rocketpost.store.timer.log import DEFAULT
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Item

JAVA = JavaFields(1, 2, 3, 4, 5, 6, 7)
EXACT = ExactFields(8, 1000, 9, 10, 11, 12, 0)


def test_a_checkpoint_comes_back() -> None:
    data = encode_checkpoint(JAVA, EXACT)
    assert len(data) == 4096
    assert decode_checkpoint(data) == (JAVA, EXACT)


def test_our_part_falls_when_a_java_broker_writes() -> None:
    data = encode_checkpoint(JAVA, EXACT)
    assert decode_checkpoint((99).to_bytes(8, "big") + data[8:]).exact is None
    assert decode_checkpoint(data[:70] + b"x" + data[71:]).exact is None
    assert decode_checkpoint(b"") == (JavaFields(), None)


def test_a_journal_comes_back_for_its_own_save_alone() -> None:
    sums = {0: FileSum(104, 7), 4096: FileSum(52, 8)}
    journal = Journal({5: b"s" * 32, 9: b"t" * 32}, {"T": 3}, 9, sums)
    data = encode_journal(7, journal)
    assert decode_journal(data + b"rest of a longer one", 7) == journal
    assert decode_journal(data, 8) is None
    assert decode_journal(data[:-1], 7) is None
    assert decode_journal(data[:40] + b"x" + data[41:], 7) is None
    assert decode_journal(b"", 7) is None


def test_the_documented_example(tmp_path: Path) -> None:
    timers = TimerStore.open_blocking(
        Layout(str(tmp_path)),
        RealFiles(),
        precision_ms=1000,
        log_file_bytes=4096,
        commit_log_end=10_000,
        now_ms=1_700_000_000_250,
        position_of=lambda offset: 0,
    )
    due_ms = 1_700_000_005_250
    slot_ms = timers.slot_of(due_ms)
    timers.add(
        [Item(slot_ms, due_ms, DEFAULT, 4096, 300, string_hash("T"))], now_ms=1_700_000_000_250
    )
    timers.save_blocking(timers.prepare_save(commit_log_end=10_000, now_ms=0))
    text = Path("docs/formats/timer.md").read_text()
    unit = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()[:52]
    slot = (tmp_path / "timerwheel").read_bytes()[16_384_160:][:32]
    lines = {"".join(line.split()) for line in text.splitlines() if line.startswith("    ")}
    assert unit.hex() in lines
    assert slot.hex() in lines
    assert "byte 16384160" in text.replace("\n", " ")
    timers.close()


def without_sums(data: bytes) -> bytes:
    """Return a journal as earlier versions wrote it."""
    _, number, slot_count, state_bytes, _ = unpack_from(">8sqiiI", data)
    slots_end = 28 + slot_count * 36
    state = msgspec.json.decode(data[slots_end : slots_end + state_bytes])
    counts = msgspec.json.encode(state["waiting"])
    rest = data[28:slots_end] + counts
    return pack(">8sqiiI", b"RPTWHEEL", number, slot_count, len(counts), crc32(rest)) + rest


@pytest.mark.parametrize("is_java_between", [False, True])
def test_the_files_of_an_earlier_version_are_used(tmp_path: Path, is_java_between: bool) -> None:
    def opened() -> TimerStore:
        return TimerStore.open_blocking(
            Layout(str(tmp_path)),
            RealFiles(),
            precision_ms=1000,
            log_file_bytes=4096,
            commit_log_end=20_000,
            now_ms=1_700_000_000_250,
            position_of=lambda offset: 20_000,
            oldest_ms=lambda: 1_699_999_990_000,
            topics=["T"],
        )

    timers = opened()
    slot_ms = timers.slot_of(1_700_000_005_250)
    items = [
        Item(slot_ms, 1_700_000_005_250, DEFAULT, at * 100, 100, string_hash("T"))
        for at in range(100)  # in two files
    ]
    timers.add(items, now_ms=1_700_000_000_250)
    timers.waiting["T"], timers.queue_offset = 100, 300
    timers.save_blocking(timers.prepare_save(commit_log_end=20_000, now_ms=0, flags=CLEAN))
    timers.close()
    for path in tmp_path.glob("timerwheel.journal*"):
        path.write_bytes(without_sums(path.read_bytes()))
    if is_java_between:  # it only took note of the time
        check = tmp_path / "config" / "timercheck"
        check.write_bytes(pack(">q", timers.read_ms + 1000) + check.read_bytes()[8:])

    for is_first in (True, False):  # also once it is saved with sums
        timers = opened()
        assert timers.rebuilt_because is None
        assert timers.is_rebuilt is (is_java_between and is_first)
        assert (timers.queue_offset, timers.waiting["T"]) == (300, 100)
        units = [unit.position for _, unit in timers.units_from(timers.wheel.get(slot_ms).last)]
        assert sorted(units) == [item.position for item in items]
        timers.close()
