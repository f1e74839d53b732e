"""Work in a thread that must not overlap with the same work of a later task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; if the caller is cancelled, the function ends first.

    ``asyncio.to_thread`` returns at once when it is cancelled, although its thread goes on. The
    next term of office could then write the same file at the same time.
    """
    running = asyncio.create_task(asyncio.to_thread(work, *arguments), name="work in a thread")
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _end(running)
        raise


async def _end(running: asyncio.Task[T]) -> None:
    """Wait for the end of a thread's work, however often this is cancelled."""
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()  # marks it as retrieved
