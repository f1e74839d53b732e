from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rocketpost.store.files import RealFiles
from rocketpost.store.integrity.damage import RANGE_COUNT_MAX, Damage, DamageRegister

NOW = 1_700_000_000_123


def damage(begin: int, end: int, reason: str = "body CRC does not match") -> Damage:
    return Damage(begin, end, reason, "orders", 3, 17, NOW, "recovery")


def open_register(directory: Path) -> DamageRegister:
    register = DamageRegister(RealFiles(), str(directory / "damage.json"))
    register.load_blocking()
    return register


def test_damage_outlives_a_restart_in_a_file_that_people_can_read(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    assert register.report_from_thread(damage(100, 200))
    assert register.report_from_thread(Damage(10, 20, "zeros", found_ms=NOW, found_by="scrub"))
    register.save_blocking()
    assert open_register(tmp_path).all() == register.all()
    assert [found.begin for found in register.all()] == [10, 100]
    stored = json.loads((tmp_path / "damage.json").read_text())
    assert stored["ranges"][1] == {
        "begin": 100,
        "end": 200,
        "reason": "body CRC does not match",
        "topic": "orders",
        "queue_id": 3,
        "queue_offset": 17,
        "found": "2023-11-14T22:13:20.123000Z",
        "found_by": "recovery",
    }


def test_a_range_is_reported_once_by_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register = open_register(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert register.report_from_thread(damage(100, 200))
        assert not register.report_from_thread(damage(100, 200))
        assert not register.report_from_thread(damage(150, 160))
        assert not register.report_from_thread(damage(190, 250))
        assert register.report_from_thread(damage(250, 300))
    assert len(caplog.records) == 2
    line = caplog.records[0].getMessage()
    assert "position=100 bytes=100 topic=orders queue=3 offset=17" in line
    assert [found[:2] for found in register.all()] == [(100, 250), (250, 300)]


def test_positions_are_looked_up(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    for begin, end in [(100, 200), (200, 210), (400, 500)]:
        register.report_from_thread(damage(begin, end))
    assert register.find_covering(99) is None
    assert register.find_covering(100) == damage(100, 200)
    assert register.find_covering(199) == damage(100, 200)
    assert register.find_covering(210) is None
    assert [register.next_sound(at) for at in (0, 100, 205, 210, 450, 600)] == [
        0, 210, 210, 210, 500, 600,
    ]  # fmt: skip


def test_a_wide_report_joins_what_it_covers(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    for begin, end in [(100, 200), (300, 400), (500, 600), (700, 800)]:
        register.report_from_thread(damage(begin, end))
    assert not register.report_from_thread(damage(150, 550))
    assert [found[:2] for found in register.all()] == [(100, 600), (700, 800)]
    assert register.count == 2


def test_ranges_that_expired_or_were_cut_off_are_forgotten(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    for begin in (100, 300, 500):
        register.report_from_thread(damage(begin, begin + 100))
    register.forget_before(200)
    register.forget_from(500)
    assert [found.begin for found in register.all()] == [300]
    register.forget(damage(300, 400))
    register.save_blocking()
    assert open_register(tmp_path).count == 0


def test_the_list_has_a_bound_and_says_when_it_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register = open_register(tmp_path)
    with caplog.at_level(logging.CRITICAL):
        for at in range(RANGE_COUNT_MAX):
            assert register.report_from_thread(damage(at * 10, at * 10 + 5))
    with caplog.at_level(logging.ERROR):
        assert not register.report_from_thread(damage(10**9, 10**9 + 1))
        assert not register.report_from_thread(damage(10**9, 10**9 + 1))
    assert len(caplog.records) == 1
    assert (register.count, register.unlisted_count) == (RANGE_COUNT_MAX, 2)


@pytest.mark.parametrize(
    "data",
    [b"{", b"\xff\xfe", b"[]", b'{"ranges": [{"begin": 1}]}', b"[" * 100_000],
)
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "damage.json").write_bytes(data)
    register = open_register(tmp_path)
    assert register.all() == []
    assert (tmp_path / "damage.json.damaged").read_bytes() == data
    register.report_from_thread(damage(1, 2))
    register.save_blocking()
    assert open_register(tmp_path).count == 1


def test_a_changed_digit_shows(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    register.report_from_thread(damage(100, 200))
    register.save_blocking()
    path = tmp_path / "damage.json"
    path.write_text(path.read_text().replace("100", "101"))
    assert open_register(tmp_path).all() == []
    assert (tmp_path / "damage.json.damaged").exists()


def test_nothing_is_written_while_nothing_is_damaged(tmp_path: Path) -> None:
    register = open_register(tmp_path)
    register.save_blocking()
    assert list(tmp_path.iterdir()) == []
