"""Background tasks that end with their owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rocketpost.errors import RocketpostError

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """The running tasks of one owner. Belongs to the event loop.

    A ``TaskGroup`` must be left by the task that entered it, but any task may start or stop a
    client; hence this set with the same promise: no task outlives its owner.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        """Run ``work`` as a task; log its exception."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait(self, seconds: float) -> None:
        """Wait until all tasks have ended, or for ``seconds``."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        me = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("task failed: name=%s", task.get_name(), exc_info=task.exception())


def look_at(future: asyncio.Future[Any]) -> None:
    """Retrieve a result that may come when no caller waits for it any more."""
    if not future.cancelled():
        future.exception()


async def repeat(
    work: Callable[[], Awaitable[None]], *, every: float, first: float, what: str
) -> None:
    """Run ``work`` repeatedly; log refusals and lost connections and continue."""
    await asyncio.sleep(first)
    while True:
        try:
            await work()
        except RocketpostError as error:
            logger.warning("periodic work failed: what=%s reason=%s", what, error)
        await asyncio.sleep(every)
