"""Whether a slave's log is the start of its master's."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from rocketpost.replication.following import TAIL_BYTES_MAX, LogFacts, why_not_follow

LOG = bytes(range(200)) * 5
FIRST, END = 500, 1000


def judged(**changes: Any) -> str:
    facts = LogFacts(100, 800, 750, crc32(LOG[750:800]))._replace(**changes)
    return why_not_follow(
        facts,
        segment_bytes=100,
        first=FIRST,
        end=END,
        crc_of=lambda begin, end: crc32(LOG[begin:end]),
    )


def test_a_start_of_the_log_may_follow() -> None:
    assert judged() == ""
    assert judged(end=1000, tail_crc=crc32(LOG[750:])) == ""


def test_an_empty_log_may_follow() -> None:
    assert judged(end=0, tail=0, tail_crc=0) == ""


def test_a_log_that_ends_where_the_masters_begins_may_follow() -> None:
    assert judged(end=500, tail=450, tail_crc=1) == ""  # there is nothing to compare


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"segment_bytes": 200}, "mappedFileSizeCommitLog is 200 at the slave and 100"),
        ({"segment_bytes": 200, "end": 0}, "mappedFileSizeCommitLog"),
        ({"end": 1001}, "messages that the master lacks"),
        ({"end": 499}, "has deleted everything before 500"),
        ({"tail_crc": 1}, "diverged"),
        ({"end": 801}, "diverged"),
        ({"tail": 801}, "said to be at 801"),
        ({"tail": -TAIL_BYTES_MAX}, "said to be at"),
    ],
)
def test_any_other_log_may_not(changes: dict[str, int], why: str) -> None:
    assert why in judged(**changes)
