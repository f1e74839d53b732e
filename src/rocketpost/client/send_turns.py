"""The order of sends to a topic whose route is being fetched.

A caller that finds the route known could overtake callers that waited for it and have not resumed
yet. So callers that had to wait, and those after them, start in the order of their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketpost.client.message import SendResult
from rocketpost.client.patience import TimeLimit
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.turns import Turns

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
        self._turns = Turns()

    def take(
        self, topic: str, seconds: float, start: Start
    ) -> Awaitable[asyncio.Future[SendResult]]:
        """Start a send when the route is known and earlier callers have started theirs.

        The send may take the rest of ``seconds``.

        Raises:
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
        """
        route = self.peek(topic)
        return start(route, seconds) if route is not None else self._wait(topic, seconds, start)

    def peek(self, topic: str) -> PublishRoute | None:
        """Return the route of a topic if a send may start at once; None if it has to wait."""
        return None if topic in self._turns else self._peek(topic)

    async def _wait(self, topic: str, seconds: float, start: Start) -> asyncio.Future[SendResult]:
        limit, turn = TimeLimit(seconds), self._turns.take(topic)
        try:
            route = await self._find(topic, seconds)
            await turn.wait()
            return await start(route, limit.left)
        finally:
            turn.end()
