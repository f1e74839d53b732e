"""The timer's checkpoint and journals, and the example of ``docs/formats/timer.md``."""

from __future__ import annotations

from pathlib import Path

from rocketpost.kernel.hashing import string_hash
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.timer_checkpoint import (
    Exact,
    FileSum,
    Java,
    Journal,
    decode_checkpoint,
    decode_journal,
    encode_checkpoint,
    encode_journal,
)
from rocketpost.store.timer_log import DEFAULT
from rocketpost.store.timer_store import Item, TimerStore

JAVA = Java(1, 2, 3, 4, 5, 6, 7)
EXACT = Exact(8, 1000, 9, 10, 11, 12, 0)


def test_a_checkpoint_comes_back() -> None:
    data = encode_checkpoint(JAVA, EXACT)
    assert len(data) == 4096
    assert decode_checkpoint(data) == (JAVA, EXACT)


def test_our_part_falls_when_a_java_broker_writes() -> None:
    data = encode_checkpoint(JAVA, EXACT)
    assert decode_checkpoint((99).to_bytes(8, "big") + data[8:]).exact is None
    assert decode_checkpoint(data[:70] + b"x" + data[71:]).exact is None
    assert decode_checkpoint(b"") == (Java(), None)


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
