"""Named filters of a broker: ``namedFilters.json`` and the requests about them."""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.model.topic import DataVersion


class NamedFilter(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One named filter."""

    name: str
    expression: str
    update_timestamp: int = 0


class NamedFilterTable(msgspec.Struct, rename="camel", kw_only=True):
    """The file, and the answer to GET_NAMED_FILTERS."""

    data_version: DataVersion = DataVersion()
    enabled: bool = True
    filters: dict[str, NamedFilter] = {}


class FilterTest(msgspec.Struct, rename="camel", kw_only=True):
    """Body of TEST_FILTER: an expression and a message to test it on."""

    expression: str
    properties: dict[str, str] = {}
    body: str | None = None


class FilterVerdict(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to TEST_FILTER."""

    verdict: str
    """TRUE, FALSE, UNKNOWN, or ERROR if values cannot be compared; only TRUE matches."""
    reason: str | None = None


def encode_named_filters(table: NamedFilterTable) -> bytes:
    """Return the text of the table."""
    return encode(table)


def decode_named_filters(data: bytes | memoryview) -> NamedFilterTable:
    """Read the table.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, NamedFilterTable)


def decode_named_filter(data: bytes | memoryview) -> NamedFilter:
    """Read the body of PUT_NAMED_FILTER.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, NamedFilter)


def decode_filter_test(data: bytes | memoryview) -> FilterTest:
    """Read the body of TEST_FILTER.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, FilterTest)


def decode_verdict(data: bytes | memoryview) -> FilterVerdict:
    """Read the answer to TEST_FILTER.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, FilterVerdict)
