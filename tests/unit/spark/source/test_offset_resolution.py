"""The offsets at which a query begins and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.source.offset_resolution import (
    report_losses,
    resolve_end,
    resolve_start,
    tags_expression,
)
from rocketpost.spark.source.plan import Bounds, DataLoss, Offsets, QueueKey
from rocketpost.spark.source.predicates import TextBounds
from rocketpost.spark.source.time_bounds import StoredMessage

A, B = QueueKey("T", "a", 0), QueueKey("T", "a", 1)
BOUNDS = {A: Bounds(10, 100), B: Bounds(0, 50)}


class FakeLink:
    """Two queues; offset = time / 10, and a group that stands in one of them."""

    def __init__(self) -> None:
        self.group = {A: 42}

    def queues(self) -> list[QueueKey]:
        return [A, B]

    def bounds(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Bounds]:
        return {queue: BOUNDS[queue] for queue in queues}

    def search_offsets(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        return {queue: min(ms[queue] // 10, BOUNDS[queue].end) for queue in queues}

    def read_stored(self, offsets: Offsets) -> dict[QueueKey, StoredMessage | None]:
        return {queue: StoredMessage(at, at * 10) for queue, at in offsets.items()}

    def group_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
        return {queue: self.group.get(queue) for queue in queues}


LINK = cast("BrokerSession", FakeLink())


def options(**more: Any) -> SourceOptions:
    return SourceOptions(name_servers="x:1", topic="T", **more)


def start(default: str = "latest", **more: Any) -> Offsets:
    return resolve_start(LINK, options(**more), default=default)


def test_starting_offsets_of_a_query() -> None:
    assert start() == {A: 100, B: 50}
    assert start(default="earliest") == {A: 10, B: 0}
    assert start(starting_offsets="group", group="g") == {A: 42, B: 0}
    assert start(starting_offsets='{"T":{"a":{"0":-2,"1":-1}}}') == {A: 10, B: 50}
    assert start(starting_timestamp=300) == {A: 30, B: 30}
    each = '{"T":{"a":{"0":500,"1":20}}}'
    assert start(starting_by_timestamp=each) == {A: 50, B: 2}


@pytest.mark.parametrize("never", [None, -1])
def test_trap_a_group_without_an_offset_in_a_queue_begins_at_its_first_message(
    never: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Brokers say so in two ways: nothing is found, or -1.
    monkeypatch.setattr(LINK, "group", {A: never, B: 0})
    assert start(starting_offsets="group", group="g") == {A: 10, B: 0}


def test_a_time_without_messages_can_be_an_error() -> None:
    assert start(starting_timestamp=600) == {A: 60, B: 50}
    with pytest.raises(ClientError, match="no message stored at 600 or later"):
        start(starting_timestamp=600, timestamp_strategy="error")


@pytest.mark.parametrize("key", ["starting_offsets", "starting_by_timestamp"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"T":{"a":{"0":1}}}', "does not name queue 1 of T on a; name every queue"),
        (
            '{"T":{"a":{"0":1,"1":2,"8":3,"9":3}}}',
            "do not exist: queues 8-9 of T on a; existing are queues 0-1 of T on a",
        ),
        ('{"T":{"a":{"0":1,"1":2},"b":{"0":1}}}', "do not exist: queue 0 of T on b; existing are"),
    ],
)
def test_options_must_name_all_queues_and_no_others(key: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        start(**{key: text})
    ends = options(**{key.replace("starting", "ending"): text})
    with pytest.raises(ConfigError, match=said):
        resolve_end(LINK, ends, BOUNDS)


def test_ends_of_batches() -> None:
    assert resolve_end(LINK, options(), BOUNDS) == {A: 100, B: 50}
    assert resolve_end(LINK, options(ending_timestamp=300), BOUNDS) == {A: 30, B: 30}
    given = options(ending_offsets='{"T":{"a":{"0":7,"1":-1}}}')
    assert resolve_end(LINK, given, BOUNDS) == {A: 7, B: 50}


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ("*", None, "*"),
        ("*", {"A"}, "A"),
        ("*", {"B", "A"}, "A || B"),
        ("A || B", {"B", "C"}, "B"),
        ("A", {"C"}, "A"),
        # What no expression can name is left to Spark.
        ("*", {"*"}, "*"),
        ("*", {""}, "*"),
        ("*", {" A"}, "*"),
        ("*", {"A||B"}, "*"),
    ],
)
def test_wanted_tags_are_sent_to_brokers(before: str, wanted: set[str] | None, after: str) -> None:
    texts = TextBounds(None if wanted is None else frozenset(wanted))
    assert tags_expression(options(expression=before), texts) == after


def test_hashes_that_may_not_be_of_tags_are_not_compared() -> None:
    texts = TextBounds(frozenset({"A"}))
    delays = SourceOptions(name_servers="x:1", topic="SCHEDULE_TOPIC_XXXX")
    assert tags_expression(delays, texts) == "*"
    sql = options(expression="a = 1", expression_type="SQL92")
    assert tags_expression(sql, texts) == "a = 1"


def test_losses_fail_a_query_or_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    losses = [DataLoss(A, "3 to 5 were deleted"), DataLoss(B, "gone")]
    with pytest.raises(ClientError, match=r"3 to 5 were deleted \(and 1 more queue\)"):
        report_losses(losses, fail=True)
    report_losses(losses, fail=False)
    assert [each.getMessage() for each in caplog.records] == [
        "messages are lost: 3 to 5 were deleted",
        "messages are lost: gone",
    ]
    report_losses([], fail=True)
