"""Requests of brokers to a member of a group: rebalance, and reset offsets.

    NOTIFY_CONSUMER_IDS_CHANGED   members came or went
    RESET_CONSUMER_CLIENT_OFFSET  an administrator resets offsets

A reset drops the fetched messages of a queue, stores its new offset and fetches from there. The
outcomes of running handlers are ignored, but for an orderly queue the running handler may finish
first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rocketpost.client.consumer.assigned_queues import AssignedQueues
from rocketpost.client.consumer.rebalance import Rebalancer
from rocketpost.client.session import Answer, Session
from rocketpost.codec.bodies.offset import decode_queue_offsets
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.client import ConsumerGroupRequest
from rocketpost.codec.headers.offset import ResetOffset
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)


class BrokerRequests:
    """Serves one member of a group. Belongs to the event loop."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        rebalancer: Rebalancer,
        assigned_queues: AssignedQueues,
    ) -> None:
        self._session = session
        self._group = group
        self._rebalancer = rebalancer
        self._assigned_queues = assigned_queues
        session.on(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            self._members_changed,
            takes=lambda command: command.read(ConsumerGroupRequest).consumer_group == group,
        )
        session.on(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            self._reset_offsets,
            takes=lambda command: command.read(ResetOffset).group == group,
        )

    def _members_changed(self, connection: Connection, command: Command) -> Answer | None:
        if command.read(ConsumerGroupRequest).consumer_group == self._group:
            self._rebalancer.wake()
        return None

    def _reset_offsets(self, connection: Connection, command: Command) -> Answer | None:
        wish = command.read(ResetOffset)
        if wish.group == self._group:
            offsets = {
                queue: offset
                for queue, offset in decode_queue_offsets(command.body).items()
                if queue.topic == wish.topic and offset >= 0
            }
            self._session.tasks.start(self._reset_all(offsets), name="reset offsets")
        return None

    async def _reset_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if await self._assigned_queues.reset(queue, offset):
                logger.warning("offset reset by a broker: queue=%s to=%s", queue, offset)
