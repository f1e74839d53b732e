"""Checks of single options, made when a query is planned. Pure.

An option that is not valid raises :class:`~rocketpost.errors.ConfigError` with one sentence.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rocketpost.client.config import parse_addresses
from rocketpost.errors import ConfigError, ConnectionLost, FilterError
from rocketpost.filter import check_filter
from rocketpost.spark.source.plan import QueueKey, flatten_offsets
from rocketpost.transport.connector import split_address

EARLIEST: Final = -2
LATEST: Final = -1
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def check_name_servers(text: str) -> None:
    """Check the addresses of name servers.

    Raises:
        ConfigError: There is no address, or one has no port.
    """
    addresses = parse_addresses(text)
    if not addresses:
        raise ConfigError("nameServer is required, such as 127.0.0.1:9876")
    for address in addresses:
        if re.search(r"[\s,]", address):
            raise ConfigError(
                f"nameServer={text!r}: separate several with semicolons, as in host:port;host:port"
            )
        try:
            split_address(address)
        except ConnectionLost:
            raise ConfigError(
                f"nameServer={text!r}: {address!r} is not host:port, such as 127.0.0.1:9876"
            ) from None


def check_expression(kind: str, text: str) -> None:
    """Check the filter that brokers apply.

    Raises:
        ConfigError: The expression is not valid; the message says where and why.
    """
    if kind != "SQL92":
        return
    if text.strip() in ("", "*"):
        raise ConfigError("subExpressionType=SQL92 needs subExpression, such as a > 5")
    try:
        check_filter(text)
    except FilterError as error:
        raise ConfigError(f"subExpression={text!r} is not an SQL92 expression: {error}") from None


def check_order(start_text: str, end_text: str) -> None:
    """Check that no queue has an ending offset before its starting offset.

    Raises:
        ConfigError: A queue has.
    """
    if not (start_text.startswith("{") and end_text.startswith("{")):
        return
    start = parse_offsets("startingOffsets", start_text)
    for queue, end in parse_offsets("endingOffsets", end_text).items():
        if 0 <= end < start.get(queue, end):
            raise ConfigError(
                f"endingOffsets={end} is before startingOffsets={start[queue]} for {queue}"
            )


def parse_offsets(key: str, text: str) -> dict[QueueKey, int]:
    """Parse an option with an offset for each queue.

    Raises:
        ConfigError: The text is not such JSON.
    """
    offsets = flatten_offsets(parse_json(key, text), what=key)
    for queue, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"{key}: {offset} for {queue} is not an offset; -2 means earliest, -1 means latest"
            )
    return offsets


def parse_times(key: str, text: str) -> dict[QueueKey, int]:
    """Parse an option with a time in milliseconds for each queue.

    Raises:
        ConfigError: The text is not such JSON.
    """
    times = flatten_offsets(parse_json(key, text), what=key)
    for queue, ms in times.items():
        if ms < 0:
            raise ConfigError(
                f"{key}: {ms} for {queue} is not a time; times are milliseconds since "
                "1970, and earliest and latest exist only for offsets"
            )
    return times


def parse_duration(key: str, text: str) -> float:
    """Parse a duration and return seconds.

    Raises:
        ConfigError: The text is not a duration.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{key}={text!r} is not a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _SECONDS[found[2]]


def parse_json(key: str, text: str) -> Any:
    """Parse JSON.

    Raises:
        ConfigError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{key} is not JSON: {error}") from None


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of topics.

    Raises:
        ConfigError: The pattern is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"topicPattern={pattern!r} is not a regular expression: {error}"
        ) from None
