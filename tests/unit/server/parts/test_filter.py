"""Filters follow the settings and are saved."""

from __future__ import annotations

from rocketpost.broker.filter_table import FilterTable
from rocketpost.broker.filters import FilterRules, Filters
from rocketpost.broker.named_filters import NamedFilters
from rocketpost.client.compression import decompress
from rocketpost.codec.bloom import bloom_shape
from rocketpost.model.group import SQL92, Subscription
from rocketpost.server.config import broker_settings
from rocketpost.server.parts.filter import FilterPart
from rocketpost.testing.clock import FakeClock


class FakeFile:
    """Keeps what would be on disk."""

    def __init__(self) -> None:
        self.data = b""

    def save_blocking(self, data: bytes) -> None:
        self.data = data


async def test_settings_reach_what_they_are_about() -> None:
    clock = FakeClock(1_000_000)
    named = NamedFilters(clock=clock)
    filters = Filters(table=FilterTable(clock=clock), unpack=decompress, resolve=named.text)
    part = FilterPart(filters=filters, table_file=FakeFile(), named=named, named_file=FakeFile())
    part.configure(*broker_settings({}))
    assert filters.rules == FilterRules(enabled=True, judges_retries=False)
    assert (named.enabled, filters.table.keep_ms) == (False, 86_400_000)
    part.configure(
        *broker_settings(
            {
                "enablePropertyFilter": "false",
                "filterSupportRetry": "true",
                "filterDataCleanTimeSpan": "5",
                "expectConsumerNumUseFilter": "64",
                "maxErrorRateOfBloomFilter": "10",
                "namedFilterEnable": "true",
            }
        )
    )
    assert filters.rules == FilterRules(enabled=False, judges_retries=True)
    assert (named.enabled, filters.table.keep_ms) == (True, 5)
    assert filters.table.bloom == bloom_shape(10, 64)
    await part.save()


async def test_both_tables_are_saved_and_shown() -> None:
    clock = FakeClock(1_000_000)
    named = NamedFilters(clock=clock)
    filters = Filters(table=FilterTable(clock=clock), unpack=decompress, resolve=named.text)
    groups_file, named_file = FakeFile(), FakeFile()
    part = FilterPart(filters=filters, table_file=groups_file, named=named, named_file=named_file)
    part.configure(*broker_settings({"namedFilterEnable": "true"}))
    named.put("big", "body.total > 100")
    wanted = Subscription(topic="T", sub_string="MATCHES('big')", expression_type=SQL92)
    filters.table.joined("G", [wanted])
    assert part.states() == {"consumerFilters": "1", "namedFilters": "1"}
    await part.save()
    assert b"MATCHES('big')" in groups_file.data
    assert b"body.total > 100" in named_file.data
