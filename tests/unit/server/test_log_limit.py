from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rocketpost.server.log_limit import (
    ERROR_FACTOR,
    INTERVAL_SECONDS,
    LINES_A_PEER_MAX,
    LINES_MAX,
    LimitRepetition,
)


class Lines(logging.Handler):
    """A handler that keeps its lines, and a clock that is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.now = 0.0
        self.limit = LimitRepetition(self, clock=lambda: self.now)
        self.addFilter(self.limit)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()}")

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    yield handler
    handler.close()


@pytest.fixture
def logger(lines: Lines) -> logging.Logger:
    logger = logging.Logger("test.limit")
    logger.addHandler(lines)
    return logger


def test_lines_of_one_kind_are_limited_and_counted(lines: Lines, logger: logging.Logger) -> None:
    for number in range(10_000):
        logger.info("offset moved: asked=%s", number)
    assert len(lines.lines) == LINES_A_PEER_MAX
    lines.now = INTERVAL_SECONDS
    lines.limit.flush()
    left_out = 10_000 - LINES_A_PEER_MAX
    assert lines.lines[-1] == (
        f"INFO test.limit lines left out: count={left_out} seconds=10 last=offset moved: asked=9999"
    )


def test_a_new_interval_begins_with_the_next_line(lines: Lines, logger: logging.Logger) -> None:
    for number in range(LINES_A_PEER_MAX + 1):
        logger.info("moved: asked=%s", number)
    lines.now = INTERVAL_SECONDS
    logger.info("moved: asked=%s", "later")
    assert "count=1 " in lines.lines[-2]
    assert lines.lines[-1] == "INFO test.limit moved: asked=later"


def test_other_lines_and_other_levels_are_not_touched(lines: Lines, logger: logging.Logger) -> None:
    for _ in range(LINES_A_PEER_MAX * 2):
        logger.info("moved: asked=%s", 1)
    logger.warning("moved: asked=%s", 1)
    logger.info("another: asked=%s", 1)
    assert len(lines.lines) == LINES_A_PEER_MAX + 2


def test_one_peer_does_not_use_up_the_lines_of_another(
    lines: Lines, logger: logging.Logger
) -> None:
    for port in range(LINES_A_PEER_MAX * 2):
        logger.info("refused: code=%s peer=%s", 5, f"10.0.0.66:{port}")
    logger.info("refused: code=%s peer=%s", 5, "10.0.0.1:5")
    assert lines.count("10.0.0.66") == LINES_A_PEER_MAX
    assert lines.count("10.0.0.1:") == 1


def test_many_peers_together_are_limited(lines: Lines, logger: logging.Logger) -> None:
    for number in range(2 * LINES_MAX):
        logger.info("refused: peer=%s", f"10.0.{number // 256}.{number % 256}:1")
    assert len(lines.lines) == LINES_MAX


def test_errors_have_more_room_and_never_vanish(lines: Lines, logger: logging.Logger) -> None:
    for position in range(10_000):
        logger.error("record is damaged: position=%s", position)
    assert lines.count("record is damaged") == LINES_A_PEER_MAX * ERROR_FACTOR
    lines.now = INTERVAL_SECONDS
    lines.limit.flush()
    assert "position=9999" in lines.lines[-1]
    assert lines.lines[-1].startswith("ERROR ")


def test_the_text_of_a_peer_is_not_taken_for_a_template(
    lines: Lines, logger: logging.Logger
) -> None:
    for number in range(LINES_A_PEER_MAX * 2):
        logger.info("skipped: group=%r peer=%s", f"peer=%s 100%% {number}", "10.0.0.1:1")
    lines.now = INTERVAL_SECONDS
    lines.limit.flush()
    assert lines.count("skipped") == LINES_A_PEER_MAX + 1


def test_texts_that_are_never_the_same_are_limited_as_well(
    lines: Lines, logger: logging.Logger
) -> None:
    for number in range(LINES_A_PEER_MAX * 2):
        logger.info(f"a task of some library failed and it says so: {number}")  # noqa: G004
    assert len(lines.lines) == LINES_A_PEER_MAX
    for number in range(6000):
        logger.info(f"{number} is a task of some library that failed")  # noqa: G004
    assert len(lines.lines) < 5000
