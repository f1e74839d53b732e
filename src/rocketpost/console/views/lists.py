"""Lists that are filtered, sorted and cut into pages by the server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from rocketpost.console.visit import PAGE_ROWS, Visit

T = TypeVar("T")


class Listing(msgspec.Struct, Generic[T], kw_only=True, rename="camel"):
    """One page of a list."""

    rows: list[T]
    total: int
    """Rows that match the filter."""
    all: int
    page: int
    pages: int
    sort: str
    descending: bool
    search: str


def cut_list(
    visit: Visit,
    rows: Sequence[T],
    *,
    name: Callable[[T], str],
    sorts: Mapping[str, Callable[[T], Any]],
    descending: bool = False,
) -> Listing[T]:
    """Return the page of a list that a visit asks for.

    Args:
        visit: The visit; its fields are ``q``, ``sort``, ``order`` and ``page``.
        rows: All rows.
        name: Returns the text of a row that the search looks at, and by which ties are broken.
        sorts: The key of each column; the first one is the default. None sorts last.
        descending: Whether the default is the other way round.
    """
    search = visit.query("q", length_max=300)
    words = search.casefold().split()
    found = [row for row in rows if all(word in name(row).casefold() for word in words)]
    sort = visit.choice("sort", tuple(sorts))
    order = visit.query("order") or ("desc" if descending and sort == next(iter(sorts)) else "asc")
    down = order == "desc"
    key = sorts[sort]
    found.sort(key=name)
    known = [row for row in found if key(row) is not None]
    known.sort(key=key, reverse=down)
    found = known + [row for row in found if key(row) is None]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(visit.number("page", 1, 1), pages)
    return Listing(
        rows=found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        total=len(found),
        all=len(rows),
        page=page,
        pages=pages,
        sort=sort,
        descending=down,
        search=search,
    )
