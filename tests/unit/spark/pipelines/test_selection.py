"""A selection says what it takes, and refuses what can take nothing."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.pipelines.selection import OffsetSpan, Selection, parse_offsets
from rocketpost.spark.source.plan import QueueKey

QUEUE = QueueKey("Orders", "broker-a", 0)


def selection(**more: object) -> Selection:
    return Selection(**{"topics": ("Orders",), "name_servers": "h:1"} | more)  # type: ignore[arg-type]


def test_a_description_shows_the_selection_and_not_the_servers() -> None:
    every = [
        selection(),
        selection(tags=("A",)),
        selection(keys=("A",)),
        selection(start_ms=1),
        selection(end_ms=1),
        selection(lake="/lake"),
        selection(offsets={QUEUE: OffsetSpan(1, 2)}),
    ]
    assert len({each.words for each in every}) == len(every)
    assert selection(name_servers="other:1").words == selection().words


def test_offsets_are_read_by_queue() -> None:
    text = '{"Orders": {"broker-a": {"0": [100, 200]}}}'
    assert parse_offsets(text) == {QUEUE: OffsetSpan(100, 200)}


@pytest.mark.parametrize("text", ["", "[]", "1", '{"Orders": [1]}', '{"T": {"b": {"0": [1]}}}'])
def test_offsets_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must look like"):
        parse_offsets(text)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topics": ()}, "topic is required"),
        ({"name_servers": ""}, "lake or name servers"),
        ({"start_ms": 5, "end_ms": 5}, "time range is empty"),
        ({"offsets": {QUEUE: OffsetSpan(5, 5)}}, "are an empty range"),
        ({"offsets": {QUEUE._replace(topic="T"): OffsetSpan(0, 5)}}, "not selected"),
    ],
)
def test_selections_that_match_nothing_are_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        selection(**more)
