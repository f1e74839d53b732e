"""Retention holds during cleaning: logs held messages that are still deleted, and saves offsets.

The offsets of holding groups are saved before messages are deleted, so that a crash cannot restore
older offsets, with which messages would seem to be lost.
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
    """Acts before held messages are deleted. Owned by the loop.

    Args:
        save: Returns once the offsets of groups are on disk.
    """

    def __init__(self, *, holds: RetentionHolds, save: Callable[[], Awaitable[None]]) -> None:
        self._holds = holds
        self._save = save

    async def move_messages_before(self, position: int) -> None:
        """Log the held messages that will be lost, and save the groups' offsets.

        With older offsets after a crash, consumed messages would seem to be lost.
        """
        if not self._holds.groups:
            return
        known = set(self._holds.losses())
        for lost in self._holds.losses(position):
            if lost not in known:
                logger.warning(
                    "held messages are forced out: group=%s topic=%s queue=%s first=%s last=%s",
                    lost.group, lost.topic, lost.queue_id, lost.first, lost.end - 1,
                )  # fmt: skip
        try:
            await self._save()
        except StoreError as error:  # a full disk must not prevent its cleaning
            logger.warning("offsets of holding groups are not saved: reason=%s", error)

    def runtime_values(self) -> dict[str, str]:
        """Return the holding groups, the first position that they hold, and lost messages."""
        groups = self._holds.groups
        if not groups:
            return {}
        position, lost = self._holds.oldest_needed_position(), self._holds.losses()
        return {
            "retentionHolds": ",".join(groups),
            "retentionHeldPosition": "-1" if position is None else str(position),
            "retentionLostMessages": str(sum(each.end - each.first for each in lost)),
            "retentionLost": "; ".join(map(str, lost[:_SHOWN_MAX])),
        }
