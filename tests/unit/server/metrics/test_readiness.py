from __future__ import annotations

from rocketpost.server.metrics.readiness import STUCK_MS, DiskWatch, log_problems


class Log:
    written_position = 100
    durable_position = 40
    why_not_writable: str | None = None


def test_a_disk_is_stuck_only_if_it_makes_no_progress() -> None:
    log, watch = Log(), DiskWatch(flush_ms=500)
    watch.look(log, 0)
    assert watch.stuck_ms(STUCK_MS + 499) == 0
    assert watch.stuck_ms(STUCK_MS + 500) == STUCK_MS + 500
    log.durable_position = 41
    watch.look(log, 6000)
    assert watch.stuck_ms(6000) == 0


def test_a_disk_with_nothing_to_do_is_not_stuck() -> None:
    log, watch = Log(), DiskWatch(flush_ms=0)
    watch.look(log, 0)
    log.durable_position = 100
    watch.look(log, 1000)
    assert watch.stuck_ms(100_000) == 0
    log.written_position = 200
    watch.look(log, 100_000)
    assert watch.stuck_ms(100_001) == 0


def test_problems_are_named() -> None:
    log = Log()
    assert log_problems(log, stuck_ms=0) == []
    log.why_not_writable = "the disk is full"
    assert log_problems(log, stuck_ms=7000) == [
        "messages cannot be stored: the disk is full",
        "the disk has taken no bytes of the commit log for 7 s",
    ]
