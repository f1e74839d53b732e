"""Retention holds at cleaning: logs held messages that are deleted all the same, and saves offsets.

The offsets of holding groups are saved before messages are deleted, so that a crash cannot bring
back older offsets, by which messages would seem to be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.errors import StoreError
from rocketpost.server.feature import Feature

logger = logging.getLogger(__name__)

_SHOWN_MAX: Final = 20


class RetentionHoldsFeature(Feature):
    """Hears of deletions. Owned by the loop.

    Args:
        saved: Returns once the offsets of groups are on disk.
    """

    def __init__(self, *, holds: RetentionHolds, saved: Callable[[], Awaitable[None]]) -> None:
        self._holds = holds
        self._saved = saved

    async def move_messages_before(self, position: int) -> None:
        """Say what is lost; keep the offsets that let the rest go.

        After a crash older offsets would say that messages are lost which were not.
        """
        if not self._holds.groups:
            return
        known = set(self._holds.lost())
        for lost in self._holds.lost(position):
            if lost not in known:
                logger.warning(
                    "held messages are forced out: group=%s topic=%s queue=%s first=%s last=%s",
                    lost.group, lost.topic, lost.queue_id, lost.first, lost.end - 1,
                )  # fmt: skip
        try:
            await self._saved()
        except StoreError as error:  # a full disk must not keep from cleaning it
            logger.warning("offsets of holding groups are not saved: reason=%s", error)

    def runtime_values(self) -> dict[str, str]:
        """Return who holds, from where on, and what was lost nevertheless."""
        groups = self._holds.groups
        if not groups:
            return {}
        position, lost = self._holds.position(), self._holds.lost()
        return {
            "retentionHolds": ",".join(groups),
            "retentionHeldPosition": "-1" if position is None else str(position),
            "retentionLostMessages": str(sum(each.end - each.first for each in lost)),
            "retentionLost": "; ".join(map(str, lost[:_SHOWN_MAX])),
        }
