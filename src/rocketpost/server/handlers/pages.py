"""Pages of the tables that slaves fetch, as RocketMQ 5.3.4 and later ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from rocketpost.codec.lenient_json import decode
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion

T = TypeVar("T")

PAGE_COUNT: Final = 2000
"""Most entries of a page, as RocketMQ's ``splitMetadataSize``."""


class PageRequest(NamedTuple):
    """The page that a slave asks for; all None if it asks for the whole table."""

    begin: int | None
    count_max: int | None
    version: str | None
    """Version of the earlier pages, as JSON."""


def page_of(table: Mapping[str, T], version: DataVersion, asked: PageRequest) -> Mapping[str, T]:
    """Return the page of a table that a slave asks for.

    A page that would leave one entry for the next one includes it: slaves of RocketMQ 5.3.4 stop
    asking when a single entry is missing.
    """
    if asked == (None, None, None):
        return table
    begin = max(0, asked.begin or 0) if _is_version(asked.version, version) else 0
    count_max = PAGE_COUNT if asked.count_max is None else asked.count_max
    end = begin + max(1, min(count_max, PAGE_COUNT))
    names = sorted(table)
    if end == len(names) - 1:
        end += 1
    return {name: table[name] for name in names[begin:end]}


def _is_version(text: str | None, version: DataVersion) -> bool:
    if not text:
        return False
    try:
        return decode(text.encode(), DataVersion) == version
    except RemoteProtocolError:
        return False
