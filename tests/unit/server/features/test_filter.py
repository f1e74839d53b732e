"""Filters follow the settings and are saved."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.client.compression import decompress
from rocketpost.codec.bloom import bloom_shape
from rocketpost.codec.bodies.filter import decode_filters
from rocketpost.codec.faults import SubscriptionParseFailed
from rocketpost.model.group import SQL92, Subscription
from rocketpost.server.features.filter import FilterFeature
from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.tables.persistence import Owner, Persistence, Saved
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.waiting import until

from ..contexts import broker_context, open_now, some_tables


class FakeFile:
    """Keeps what would be on disk."""

    def __init__(self) -> None:
        self.data = b""

    def save_blocking(self, data: bytes) -> None:
        self.data = data


def filter_feature(
    filters: Filters, named: NamedFilters, persistence: Persistence | None = None
) -> FilterFeature:
    tables = some_tables(filters=filters.table, named=named)
    context = broker_context(
        filters=filters, tables=tables, persistence=persistence or Persistence([])
    )
    feature = FilterFeature(context)
    open_now(feature)
    return feature


async def test_namedFilterEnable() -> None:
    clock = FakeClock(1_000_000)
    named = NamedFilters(clock=clock)
    filters = Filters(table=FilterTable(clock=clock), unpack=decompress, resolve=named.text)
    feature = filter_feature(filters, named)
    feature.configure(*broker_settings({"namedFilterEnable": "true"}))
    named.put("big", "body.total > 100")
    filters.check(SQL92, "MATCHES('big')")
    feature.configure(*broker_settings({"namedFilterEnable": "false"}))
    with pytest.raises(SubscriptionParseFailed, match="namedFilterEnable"):
        filters.check(SQL92, "MATCHES('big')")


async def test_the_shape_of_bloom_filters() -> None:
    settings = {"expectConsumerNumUseFilter": "64", "maxErrorRateOfBloomFilter": "10"}
    bits = []
    for given in ({}, settings):
        clock = FakeClock(1_000_000)
        named = NamedFilters(clock=clock)
        filters = Filters(table=FilterTable(clock=clock), unpack=decompress, resolve=named.text)
        feature = filter_feature(filters, named)
        feature.configure(*broker_settings(given))
        filters.table.update(
            "G", [Subscription(topic="T", sub_string="a > 1", expression_type=SQL92)]
        )
        found = (
            decode_filters(filters.table.to_json()).filter_data_by_topic["T"].group_filter_data["G"]
        )
        assert found.bloom_filter_data is not None
        bits.append((found.bloom_filter_data.bit_num, len(found.bloom_filter_data.bit_pos)))
    usual, larger = bloom_shape(20, 32), bloom_shape(10, 64)
    assert bits == [
        (usual.bit_count, usual.hash_count),
        (larger.bit_count, larger.hash_count),
    ]


async def test_named_filters_are_saved_soon_and_both_tables_shown() -> None:
    clock = FakeClock(1_000_000)
    named = NamedFilters(clock=clock)
    filters = Filters(table=FilterTable(clock=clock), unpack=decompress, resolve=named.text)
    named_file = FakeFile()
    persistence = Persistence([Saved(named, named_file, owner=Owner.NAMED_FILTERS)])
    feature = filter_feature(filters, named, persistence)
    running = asyncio.ensure_future(persistence.run())
    await asyncio.sleep(0)
    feature.configure(*broker_settings({"namedFilterEnable": "true"}))
    named.put("big", "body.total > 100")
    wanted = Subscription(topic="T", sub_string="MATCHES('big')", expression_type=SQL92)
    filters.table.update("G", [wanted])
    assert feature.runtime_values() == {"consumerFilters": "1", "namedFilters": "1"}
    await until(lambda: b"body.total > 100" in named_file.data)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await persistence.close()
