"""Requests to many servers or consumers, with a limit on those under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

_CONCURRENT_MAX: Final = 16

T = TypeVar("T")
U = TypeVar("U")


async def map_concurrently(items: Iterable[T], work: Callable[[T], Awaitable[U]]) -> list[U]:
    """Return the result of ``work`` for each item, in order, with at most 16 under way."""
    gate = asyncio.Semaphore(_CONCURRENT_MAX)

    async def run(item: T) -> U:
        async with gate:
            return await work(item)

    return list(await asyncio.gather(*(run(item) for item in items)))
