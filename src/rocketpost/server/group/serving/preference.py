"""The preferred leader of a group (``preferredLeaderId``): it leads whenever it can.

Another leader hands over as soon as the preferred member has caught up. Every member may
name another preferred leader; the settings of the one that leads count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketpost.errors import ReplicationError
from rocketpost.raft.election import Role
from rocketpost.server.group.member import GroupMember

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 10.0
"""Time after which a handover that failed is tried again."""
_BEHIND_BYTES_MAX: Final = 1024 * 1024
"""Bytes that the preferred leader may lack: it gets them while senders wait."""


async def prefer(preferred: str, member: GroupMember) -> None:
    """Hand over to the preferred leader whenever this member leads and the other is ready.

    Runs until cancelled.
    """
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not is_ready(preferred, member):
            continue
        logger.info("hands over to the preferred leader: preferredLeaderId=%s", preferred)
        try:
            await member.hand_over(preferred)
        except ReplicationError as error:
            logger.warning("not handed over to the preferred leader: reason=%s", error)
            await asyncio.sleep(AGAIN_SECONDS)


def is_ready(preferred: str, member: GroupMember) -> bool:
    """Tell whether this member leads, and the preferred one can take over."""
    node = member.node
    if node.role is not Role.LEADER or not member.is_leading or preferred == node.node:
        return False
    progress = node.progress.get(preferred)
    if progress is None or preferred not in node.members.voters or progress.suspect:
        return False
    is_near = node.log.end - progress.match <= _BEHIND_BYTES_MAX
    return is_near and member.links.is_up(preferred)
