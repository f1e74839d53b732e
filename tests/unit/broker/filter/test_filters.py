"""The filters of groups, and filters that are refused."""

from __future__ import annotations

import pytest

from rocketpost.broker.filter import filters as module
from rocketpost.broker.filter.filters import FilterRules, Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.client.compression import decompress
from rocketpost.codec.faults import (
    FilterDataNotExist,
    FilterDataNotLatest,
    ServerError,
    SubscriptionParseFailed,
)
from rocketpost.model.group import SQL92, Subscription
from rocketpost.testing.clock import FakeClock


@pytest.fixture
def filters() -> Filters:
    filters = Filters(table=FilterTable(clock=FakeClock(1_000_000)), unpack=decompress)
    wanted = Subscription(topic="T", sub_string="a > 5", expression_type=SQL92, sub_version=7)
    broken = Subscription(topic="U", sub_string="a >", expression_type=SQL92, sub_version=7)
    filters.table.update("G", [wanted, broken])
    return filters


def test_the_same_text_is_compiled_once(filters: Filters) -> None:
    found = filters.check(SQL92, "a > 5")
    assert filters.check(SQL92, "a > 5") is found
    assert filters.of_group("T", "G", 7) is found
    assert filters.find_last("T", "G") is found
    filters.forget()
    assert filters.check(SQL92, "a > 5") is not found


def test_the_cache_is_bounded(filters: Filters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_MAX", 2)
    first = filters.check(SQL92, "a = 1")
    filters.check(SQL92, "a = 2")
    assert filters.check(SQL92, "a = 1") is first
    filters.check(SQL92, "a = 3")
    assert filters.check(SQL92, "a = 1") is first


def test_a_filter_that_the_group_never_sent_is_refused(filters: Filters) -> None:
    with pytest.raises(FilterDataNotExist):
        filters.of_group("T", "H", 7)
    with pytest.raises(FilterDataNotLatest):
        filters.of_group("T", "G", 8)
    for _ in range(2):  # a mistake is remembered as well
        with pytest.raises(SubscriptionParseFailed, match="at character 4"):
            filters.of_group("U", "G", 7)
    assert filters.find_last("U", "G") is None
    assert filters.find_last("T", "H") is None


def test_filters_can_be_switched_off(filters: Filters) -> None:
    filters.rules = FilterRules(enabled=False)
    with pytest.raises(ServerError, match="enablePropertyFilter"):
        filters.check(SQL92, "a > 5")
    with pytest.raises(ServerError, match="enablePropertyFilter"):
        filters.of_group("T", "H", 7)
    assert filters.find_last("T", "G") is None


def test_retries_are_filtered_only_if_the_setting_is_on(filters: Filters) -> None:
    assert filters.of_retries("%RETRY%G") is None
    filters.rules = FilterRules(filters_retries=True)
    assert filters.of_retries("T") is None
    found = filters.of_retries("%RETRY%G")
    assert found is not None
    assert found == filters.of_retries("%RETRY%G")
    assert hash(found) == hash(filters.of_retries("%RETRY%G"))
    assert found != filters.of_retries("%RETRY%H")


def test_expressions_that_are_too_long_are_not_cached(filters: Filters) -> None:
    filters.forget()
    for _ in range(2):
        with pytest.raises(SubscriptionParseFailed, match="characters"):
            filters.check(SQL92, "a = '" + "x" * 20_000 + "'")
    assert not filters._compiled
    long = Subscription(topic="L", sub_string="a" * 100_000, expression_type=SQL92, sub_version=1)
    filters.table.update("L", [long])
    data = filters.table.find("L", "L")
    assert data is not None
    assert len(data.expression) < 20_000
    with pytest.raises(SubscriptionParseFailed, match="characters"):
        filters.of_group("L", "L", 1)
