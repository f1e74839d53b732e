"""Filters that a broker keeps: who may put them, what is refused, what is on disk."""

from __future__ import annotations

import pytest

from rocketpost.broker.filter import named as named_filters
from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.client.compression import decompress
from rocketpost.codec.faults import (
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    SubscriptionParseFailed,
    SystemBusy,
)
from rocketpost.errors import FilterError, StoreError
from rocketpost.model.group import SQL92, Subscription
from rocketpost.testing.clock import FakeClock


@pytest.fixture
def named() -> NamedFilters:
    named = NamedFilters(clock=FakeClock(1_000_000))
    named.enabled = True
    return named


@pytest.fixture
def filters(named: NamedFilters) -> Filters:
    table = FilterTable(clock=FakeClock(1_000_000))
    filters = Filters(table=table, unpack=decompress, resolve=named.text)
    named.users = filters.users
    named.on_change = filters.forget
    return filters


def test_named_filters_are_refused_unless_switched_on() -> None:
    named = NamedFilters(clock=FakeClock(0))
    with pytest.raises(NoPermission, match="namedFilterEnable"):
        named.put("big", "body.total > 100")
    with pytest.raises(NoPermission, match="namedFilterEnable"):
        named.delete("big")
    with pytest.raises(FilterError, match="namedFilterEnable"):
        named.text("big")


def test_a_named_filter_is_stored_replaced_and_deleted(named: NamedFilters) -> None:
    named.put("big", "body.total > 100")
    named.put("big", "body.total > 200")
    assert (named.text("big"), len(named), named.revision) == ("body.total > 200", 1, 2)
    named.delete("big")
    with pytest.raises(FilterError, match="no named filter of that name"):
        named.text("big")
    with pytest.raises(InvalidParameter):
        named.delete("big")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a'b", "größe"])
def test_a_bad_name_is_refused(named: NamedFilters, name: str) -> None:
    with pytest.raises(InvalidParameter):
        named.put(name, "a = 1")


@pytest.mark.parametrize("text", ["", "a >", "MATCHES('other')", "__import__('os')"])
def test_a_wrong_expression_is_refused(named: NamedFilters, text: str) -> None:
    with pytest.raises(SubscriptionParseFailed):
        named.put("big", text)
    assert (len(named), named.revision) == (0, 0)


def test_there_is_a_bound(named: NamedFilters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_filters, "FILTERS_MAX", 1)
    named.put("one", "a = 1")
    named.put("one", "a = 2")
    with pytest.raises(SystemBusy):
        named.put("two", "a = 1")


def test_named_filters_survive_a_restart(named: NamedFilters) -> None:
    named.put("big", "body.total > 100")
    again = NamedFilters(clock=FakeClock(0))
    again.load(named.to_json())
    again.enabled = True
    assert again.text("big") == "body.total > 100"
    for broken in (b"[]", named.to_json().replace(b"body.total >", b"body.total > >")):
        with pytest.raises(StoreError):
            again.load(broken)


def test_a_change_reaches_the_subscribers_that_use_the_filter(
    named: NamedFilters, filters: Filters
) -> None:
    named.put("big", "a > 100")
    assert not filters.check(SQL92, "MATCHES('big')").expression.matches({"a": "50"})
    named.put("big", "a > 10")
    assert filters.check(SQL92, "MATCHES('big')").expression.matches({"a": "50"})
    with pytest.raises(SubscriptionParseFailed, match="no named filter of that name"):
        filters.check(SQL92, "a = 1 AND MATCHES('small')")
    with pytest.raises(SubscriptionParseFailed, match="does not belong"):
        filters.check(SQL92, "body.total > 100")


def test_a_named_filter_in_use_cannot_be_deleted(named: NamedFilters, filters: Filters) -> None:
    named.put("big", "a > 100")
    text = "region = 'eu' AND NOT MATCHES('big')"
    wanted = Subscription(topic="T", sub_string=text, expression_type=SQL92, sub_version=1)
    filters.table.update("G", [wanted])
    with pytest.raises(IllegalOperation, match="G"):
        named.delete("big")
    filters.table.mark_dead("G")
    named.delete("big")
