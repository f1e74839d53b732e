"""``consumerFilter.json``: the filters of consumer groups, as Java writes them."""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.model.group import SQL92


class BloomData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The bits of a group in the bloom filter."""

    bit_num: int = 0
    bit_pos: list[int] = []


class FilterData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A group's filter for a topic. Members in the order in which Java writes them."""

    bloom_filter_data: BloomData | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = SQL92
    topic: str = ""


class TopicFilters(msgspec.Struct, rename="camel", kw_only=True):
    """The filters for one topic, by group."""

    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class ConsumerFilters(msgspec.Struct, rename="camel", kw_only=True):
    """The whole file."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


def encode_filters(filters: ConsumerFilters) -> bytes:
    """Return the text of the file."""
    return encode(filters)


def decode_filters(data: bytes | memoryview) -> ConsumerFilters:
    """Read the file.

    Raises:
        RemoteProtocolError: The file is malformed.
    """
    return decode_body(data, ConsumerFilters)
