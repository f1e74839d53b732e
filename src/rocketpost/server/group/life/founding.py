"""The decision whether a member without a past belongs to a new group, or has lost its disk.

Both look the same on its own disk. If it has lost its disk, it may have acknowledged messages and
given votes that it does not remember; with such a member a group could elect a leader that lacks
acknowledged messages. So a member without a past is *suspect*: it neither votes nor leads, until a
leader has given it the log.

A group is new if **all** of its members say that no term has begun for them. Then nothing was ever
acknowledged in it. So the first start of a group needs all of its members; later ones need a
majority. One of the members may bring a log from before the group. It is the first leader, since
the others have nothing, and gives it to them. A member with such a log cannot join a group that has
begun: its messages do not belong to the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from enum import Enum
from typing import Final

from rocketpost.codec.group.hello import History

logger = logging.getLogger(__name__)

REPEAT_SECONDS: Final = 10.0
"""Time after which the log says again what a new group waits for."""


class Verdict(Enum):
    """State of the decision."""

    OPEN = "not all members have been heard"
    NEW = "the group is new"
    OLD = "the group has a past"


class Founding:
    """Collects what the members of a group say about their pasts. Owned by the loop.

    Args:
        own: The facts on this member's disk.
        others: The ids of the other members, as the settings name them.
    """

    def __init__(self, own: History, others: Iterable[str]) -> None:
        self._own = own
        self._others = frozenset(others)
        self._heard: dict[str, History] = {}
        self._news = asyncio.Event()

    def note(self, peer: str, history: History) -> None:
        """Note what a member states about itself."""
        self._heard[peer] = history
        self._news.set()

    @property
    def verdict(self) -> Verdict:
        """Whether the group is new."""
        found = [self._own, *self._heard.values()]
        if any(each.term for each in found):
            return Verdict.OLD
        if self._missing or len(self._with_logs) > 1:
            return Verdict.OPEN
        return Verdict.NEW

    @property
    def floor(self) -> int:
        """End of the messages from before the group; 0 if no member has any."""
        return max(each.end for each in (self._own, *self._heard.values()))

    @property
    def is_stranger(self) -> bool:
        """Whether this member has messages of its own, and may only begin a new group with them."""
        return self._own.end > 0 and self.verdict is not Verdict.NEW

    @property
    def obstacle(self) -> str:
        """Reason why this member takes no part in the group yet; empty if it does."""
        if self.verdict is Verdict.OLD and self._own.end:
            return (
                "this member has messages from before the group, but the group has begun without"
                " them; start it with an empty storePathRootDir, and send them to the group"
            )
        if self.verdict is not Verdict.OPEN:
            return ""
        if self._missing:
            return (
                f"a new group begins when all members are up; missing: {', '.join(self._missing)}"
            )
        return (
            f"{' and '.join(self._with_logs)} have messages from before the group, and no order"
            " between them is known; keep the store of one of them, and start the others with an"
            " empty storePathRootDir"
        )

    async def decide(self) -> Verdict:
        """Wait until it is known whether the group is new, and log what is missing."""
        loop = asyncio.get_running_loop()
        told, told_at = "", 0.0
        while (verdict := self.verdict) is Verdict.OPEN:
            self._news.clear()
            if self.obstacle != told or loop.time() - told_at >= REPEAT_SECONDS:
                told, told_at = self.obstacle, loop.time()
                logger.info("no leader yet: %s", told)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_SECONDS):
                    await self._news.wait()
        return verdict

    @property
    def _missing(self) -> list[str]:
        return sorted(self._others - self._heard.keys())

    @property
    def _with_logs(self) -> list[str]:
        own = ["this member"] if self._own.end else []
        return own + sorted(peer for peer, history in self._heard.items() if history.end)
