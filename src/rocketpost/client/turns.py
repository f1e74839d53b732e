"""Turns of those who send to a topic while its route is still being learned.

Whoever calls once the route is known would overtake those who have been told of it and not yet run.
So callers that had to wait, and those behind them, leave in the order of their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketpost.client.message import SendResult
from rocketpost.client.route_cache import PublishRoute

Start = Callable[[PublishRoute], "Awaitable[asyncio.Future[SendResult]]"]
"""Starts a send to a topic with this route."""


class Turns:
    """The callers that wait, by topic. Belongs to the event loop.

    Args:
        peek: Returns the route of a topic if it is known.
        find: Returns it, asking for it if need be, within so many seconds.
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
        """Done when the last caller and all before it have left."""

    def take(
        self, topic: str, seconds: float, start: Start
    ) -> Awaitable[asyncio.Future[SendResult]]:
        """Start a send when the route is known and those who called before have started theirs.

        Raises:
            RouteNotFound: No broker takes messages of this topic.
            NoNameServer: No name server answers.
        """
        route = self._peek(topic)
        if route is None or topic in self._last:
            return self._wait(topic, seconds, start)
        return start(route)

    async def _wait(self, topic: str, seconds: float, start: Start) -> asyncio.Future[SendResult]:
        ahead = self._last.get(topic)
        mine = self._last[topic] = asyncio.get_running_loop().create_future()
        try:
            route = await self._find(topic, seconds)
            if ahead is not None and not ahead.done():
                await asyncio.wait([ahead])
            return await start(route)
        finally:
            if ahead is None or ahead.done():
                self._end(topic, mine)
            else:  # we give up, and those behind us wait for those before us
                ahead.add_done_callback(lambda _: self._end(topic, mine))

    def _end(self, topic: str, mine: asyncio.Future[None]) -> None:
        mine.set_result(None)
        if self._last.get(topic) is mine:
            del self._last[topic]
