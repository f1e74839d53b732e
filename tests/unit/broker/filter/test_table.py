"""Filters of groups: who replaces whom, who dies when, what is on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rocketpost.broker.filter import table as filter_table
from rocketpost.broker.filter.table import FilterTable
from rocketpost.errors import StoreError
from rocketpost.model.group import SQL92, Subscription, parse_tags
from rocketpost.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000)


@pytest.fixture
def table(clock: FakeClock) -> FilterTable:
    return FilterTable(clock=clock)


def sql(text: str, version: int = 1, topic: str = "T") -> Subscription:
    return Subscription(topic=topic, sub_string=text, expression_type=SQL92, sub_version=version)


def texts(table: FilterTable) -> Iterator[tuple[str, str, bool]]:
    return ((each.topic, each.expression, each.dead_time > 0) for each in table)


def test_tag_subscriptions_are_not_stored(table: FilterTable) -> None:
    table.update("G", [parse_tags("T", "A", version=1)])
    assert len(table) == table.revision == 0


def test_a_newer_text_replaces_an_older_one(table: FilterTable, clock: FakeClock) -> None:
    table.update("G", [sql("a > 1", 5)])
    clock.advance(10)
    table.update("G", [sql("a > 2", 6)])
    data = table.find("T", "G")
    assert data is not None
    assert (data.expression, data.client_version, data.born_time) == ("a > 2", 6, 1_000_010)
    table.update("G", [sql("a > 3", 6)])
    table.update("G", [sql("a > 3", 4)])
    assert list(texts(table)) == [("T", "a > 2", False)]


def test_the_same_text_only_raises_the_version(table: FilterTable, clock: FakeClock) -> None:
    table.update("G", [sql("a > 1", 5)])
    clock.advance(10)
    before = table.revision
    table.update("G", [sql("a > 1", 5)])
    assert table.revision == before
    table.update("G", [sql("a > 1", 9)])
    data = table.find("T", "G")
    assert data is not None
    assert (data.client_version, data.born_time) == (9, 1_000_000)


def test_a_filter_is_dead_while_its_group_is_away(table: FilterTable) -> None:
    table.update("G", [sql("a > 1", 5)])
    table.mark_dead("G")
    assert list(texts(table)) == [("T", "a > 1", True)]
    table.update("G", [sql("a > 1", 5)])
    assert list(texts(table)) == [("T", "a > 1", False)]


def test_the_filter_of_an_unsubscribed_topic_is_dead(table: FilterTable) -> None:
    table.update("G", [sql("a > 1"), sql("b > 1", topic="U")])
    table.update("G", [sql("a > 1"), parse_tags("U", "*", version=2)])
    assert sorted(texts(table)) == [("T", "a > 1", False), ("U", "b > 1", True)]


def test_a_returning_group_may_change_its_filter_although_its_clock_is_behind(
    table: FilterTable,
) -> None:
    table.update("G", [sql("a > 1", 5)])
    table.mark_dead("G")
    table.update("G", [sql("a > 2", 4)])
    assert list(texts(table)) == [("T", "a > 2", False)]


def test_long_dead_filters_are_removed(table: FilterTable, clock: FakeClock) -> None:
    table.update("G", [sql("a > 1")])
    table.update("H", [sql("a > 1")])
    table.mark_dead("G")
    clock.advance(table.keep_ms)
    table.expire()
    assert len(table) == 2
    clock.advance(1)
    table.expire()
    assert [each.consumer_group for each in table] == ["H"]
    assert table.find("T", "G") is None


def test_only_dead_filters_make_room(
    table: FilterTable, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_table, "ENTRIES_MAX", 2)
    for group in ("G", "H"):
        table.update(group, [sql("a > 1")])
    table.update("I", [sql("a > 1")])
    assert [each.consumer_group for each in table] == ["G", "H"]
    table.mark_dead("G")
    table.update("I", [sql("a > 1")])
    assert [each.consumer_group for each in table] == ["H", "I"]


def test_the_file_has_the_format_of_rocketmq(table: FilterTable, clock: FakeClock) -> None:
    table.update("G", [sql("a > 1", 5)])
    written = json.loads(table.to_json())
    assert written == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "G": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [24, 26, 83]},
                        "bornTime": 1_000_000,
                        "clientVersion": 5,
                        "consumerGroup": "G",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 1",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }
    clock.advance(100_000)
    again = FilterTable(clock=clock)
    again.load(table.to_json())
    data = again.find("T", "G")
    assert data is not None
    assert (data.expression, data.client_version) == ("a > 1", 5)
    assert data.dead_time == clock.now_ms() - 30_000
    with pytest.raises(StoreError):
        again.load(b"[]")
