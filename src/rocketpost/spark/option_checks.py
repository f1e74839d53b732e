"""Checks of single options: what is wrong is found when a query is planned, and said in a sentence.

Values in, :class:`~rocketpost.errors.ConfigError` or nothing out. Nobody is asked.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rocketpost.client.config import parse_addresses
from rocketpost.errors import ConfigError, ConnectionLost, FilterError
from rocketpost.filter import check_filter
from rocketpost.spark.source.plan import QueueKey, flat
from rocketpost.transport.connector import split_address

EARLIEST: Final = -2
LATEST: Final = -1
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def check_name_servers(text: str) -> None:
    """Check the addresses of name servers.

    Raises:
        ConfigError: There are none, or one lacks its port.
    """
    addresses = parse_addresses(text)
    if not addresses:
        raise ConfigError("nameServer is required, such as 127.0.0.1:9876")
    for address in addresses:
        if re.search(r"[\s,]", address):
            raise ConfigError(
                f"nameServer={text!r}: several are parted by semicolons, host:port;host:port"
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
        ConfigError: It is no expression of its kind; says where and why.
    """
    if kind != "SQL92":
        return
    if text.strip() in ("", "*"):
        raise ConfigError("subExpressionType=SQL92 needs subExpression, such as a > 5")
    try:
        check_filter(text)
    except FilterError as error:
        raise ConfigError(f"subExpression={text!r} is no SQL92 expression: {error}") from None


def check_order(start_text: str, end_text: str) -> None:
    """Check that offsets given by queue do not end before they begin.

    Raises:
        ConfigError: They do in some queue.
    """
    if not (start_text.startswith("{") and end_text.startswith("{")):
        return
    start = offsets_json("startingOffsets", start_text)
    for queue, end in offsets_json("endingOffsets", end_text).items():
        if 0 <= end < start.get(queue, end):
            raise ConfigError(
                f"endingOffsets={end} lies before startingOffsets={start[queue]} for {queue}"
            )


def offsets_json(key: str, text: str) -> dict[QueueKey, int]:
    """Return offsets that an option gives by queue.

    Raises:
        ConfigError: The text is no such JSON.
    """
    offsets = flat(from_json(key, text), what=key)
    for queue, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(f"{key}: {offset} for {queue} is no offset; -2 earliest, -1 latest")
    return offsets


def times_json(key: str, text: str) -> dict[QueueKey, int]:
    """Return times that an option gives by queue, in milliseconds.

    Raises:
        ConfigError: The text is no such JSON.
    """
    times = flat(from_json(key, text), what=key)
    for queue, ms in times.items():
        if ms < 0:
            raise ConfigError(
                f"{key}: {ms} for {queue} is no time; times are milliseconds since 1970, and "
                "earliest and latest are said by offsets alone"
            )
    return times


def seconds_of(key: str, text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: The text is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{key}={text!r} is no duration such as 500ms, 30s, 15m, 1h")
    return int(found[1]) * _SECONDS[found[2]]


def from_json(key: str, text: str) -> Any:
    """Return what JSON text says.

    Raises:
        ConfigError: It is none.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{key} is no JSON: {error}") from None


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of topics.

    Raises:
        ConfigError: It is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"topicPattern={pattern!r} is no regular expression: {error}") from None
