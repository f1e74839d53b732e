"""Turns of calls, by topic: a call may start when those before it have started or given up.

A caller that need not wait could overtake one that waits. So both take a turn.
"""

from __future__ import annotations

import asyncio


class Turn:
    """The turn of one caller. Belongs to the event loop.

    Args:
        turns: The turns that it is one of.
        topic: The topic.
    """

    __slots__ = ("_ahead", "_ended", "_topic", "_turns")

    def __init__(self, turns: Turns, topic: str) -> None:
        self._turns = turns
        self._topic = topic
        self._ahead = turns.last.get(topic)
        self._ended = turns.last[topic] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait until all turns before this one have ended."""
        if self._ahead is not None and not self._ahead.done():
            await asyncio.wait([self._ahead])

    def end(self) -> None:
        """Let the next caller start; to be called exactly once.

        If a caller gives up before its turn, the others keep their order: those after it wait for
        those before it.
        """
        if self._ahead is None or self._ahead.done():
            self._end()
        else:
            self._ahead.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        self._ended.set_result(None)
        if self._turns.last.get(self._topic) is self._ended:
            del self._turns.last[self._topic]


class Turns:
    """The turns of all topics. Belongs to the event loop.

    Attributes:
        last: Done when the last turn of a topic, and all before it, have ended.
    """

    def __init__(self) -> None:
        self.last: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, topic: str) -> bool:
        """Tell whether a call would have to wait for others."""
        return topic in self.last

    def take(self, topic: str) -> Turn:
        """Take the turn after all others."""
        return Turn(self, topic)
