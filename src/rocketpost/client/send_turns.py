"""The order of sends to a topic whose route is being fetched.

A caller that finds the route known could overtake callers that waited for it and have not resumed
yet. So callers that had to wait, and those behind them, start in the order of their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketpost.client.message import SendResult
from rocketpost.client.patience import TimeLimit
from rocketpost.client.route_cache import PublishRoute

Start = Callable[[PublishRoute, float], "Awaitable[asyncio.Future[SendResult]]"]
"""Starts a send to a topic with this route; it may take so many seconds."""


class SendTurns:
    """Waiting callers, by topic. Belongs to the event loop.

    Args:
        peek: Returns the cached route of a topic, or None.
        find: Returns the route of a topic; fetches it if necessary, within a time limit.
    """

    def __init__(
        self,
        *,
        peek: Callable[[str], PublishRoute | None],
        find: Callable[[str, float], Awaitable[PublishRoute]],
    ) -> None:
        self._peek = peek
        self._find = find
        self._last: dict[str, asyncio.Future[None]] = {}
        """Done when the last caller and all before it have started."""

    def take(
        self, topic: str, seconds: float, start: Start
    ) -> Awaitable[asyncio.Future[SendResult]]:
        """Start a send when the route is known and earlier callers have started theirs.

        The send may take what is left then of ``seconds``.

        Raises:
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
        """
        route = self.peek(topic)
        return start(route, seconds) if route is not None else self._wait(topic, seconds, start)

    def peek(self, topic: str) -> PublishRoute | None:
        """Return the route of a topic if a send may start at once; None if it has to wait."""
        return None if topic in self._last else self._peek(topic)

    async def _wait(self, topic: str, seconds: float, start: Start) -> asyncio.Future[SendResult]:
        limit = TimeLimit(seconds)
        ahead = self._last.get(topic)
        mine = self._last[topic] = asyncio.get_running_loop().create_future()
        try:
            route = await self._find(topic, seconds)
            if ahead is not None and not ahead.done():
                await asyncio.wait([ahead])
            return await start(route, limit.left)
        finally:
            if ahead is None or ahead.done():
                self._end(topic, mine)
            else:  # we give up; those behind us now wait for those before us
                ahead.add_done_callback(lambda _: self._end(topic, mine))

    def _end(self, topic: str, mine: asyncio.Future[None]) -> None:
        mine.set_result(None)
        if self._last.get(topic) is mine:
            del self._last[topic]
