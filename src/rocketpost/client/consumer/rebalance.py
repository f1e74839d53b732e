"""The rebalance: periodic assignment of queues to the members of a group.

Every member asks a broker for the list of members and computes its own share. A round runs at least
every 20 s, at once when a broker reports that members came or went, and again after a second when a
round failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from rocketpost.client.consumer.allocation import AllocationStrategy
from rocketpost.client.consumer.assigning import BrokerAssignment
from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import ConsumerIds
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.client import ConsumerGroupRequest
from rocketpost.errors import ClientError, ConnectionLost, RocketpostError, RouteNotFound
from rocketpost.model.names import is_retry_or_dlq
from rocketpost.model.route import MessageQueue
from rocketpost.model.shares import java_order

logger = logging.getLogger(__name__)

ROUND_SECONDS_MIN: Final = 1.0
_FAILURES_TO_TELL: Final = 3

Apply = Callable[[str, list[MessageQueue], bool], Awaitable[None]]
"""Called with a topic, our share of its queues, and whether we are the only member."""

QueueListener = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Called with a topic, all its queues, and our share of them."""


class Rebalancer:
    """Assigns the queues of one group. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        strategy: The strategy.
        topics: Lists the subscribed topics.
        apply: Applies a share.
        broadcasting: Whether every member gets every queue.
        after: Called after every round.
        assigning: Has brokers assign queues, if configured; topics that they cannot assign are
            assigned here.
        listener: Called when a topic's queues or our share of them have changed.
        every: Interval of rounds in seconds.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        strategy: AllocationStrategy,
        topics: Callable[[], list[str]],
        apply: Apply,
        every: float,
        broadcasting: bool = False,
        after: Callable[[], Awaitable[None]] | None = None,
        assigning: BrokerAssignment | None = None,
        listener: QueueListener | None = None,
    ) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy
        self._topics = topics
        self._apply = apply
        self._every = every
        self._broadcasting = broadcasting
        self._after = after
        self._assigning = assigning
        self._listener = listener
        self._told: dict[str, tuple[list[MessageQueue], list[MessageQueue]]] = {}
        self._wake = asyncio.Event()
        self._failed: dict[str, int] = {}

    def wake(self) -> None:
        """Start a round soon."""
        self._wake.set()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began = loop.time()
            balanced = await self.round()
            if self._after is not None:
                await self._after()
            await self._wait(self._every if balanced else ROUND_SECONDS_MIN)
            # Members that join together should not cause a round each.
            await asyncio.sleep(max(0.0, began + ROUND_SECONDS_MIN - loop.time()))

    async def round(self) -> bool:
        """Assign the queues of every topic; return whether all succeeded."""
        balanced = True
        for topic in self._topics():
            try:
                await self._share_out(topic)
                self._failed.pop(topic, None)
            except RocketpostError as error:
                balanced = False
                self._failed[topic] = self._failed.get(topic, 0) + 1
                # Name servers learn of a new group's retry topic a moment after its first member.
                if self._failed[topic] == _FAILURES_TO_TELL:
                    logger.warning("queues not assigned: topic=%s reason=%s", topic, error)
                if isinstance(error, ConnectionLost):
                    await self._session.routes.refresh(topic)  # a slave may answer instead
        return balanced

    async def _share_out(self, topic: str) -> None:
        if self._assigning is not None and await self._assigning.share_out(topic):
            return
        queues = await self._session.routes.subscribe(topic)
        if self._broadcasting:
            await self._apply(topic, queues, True)
            self._tell(topic, queues, queues)
            return
        members = await self._members(topic)
        share = self._ask_strategy(queues, members) if queues else []
        await self._apply(topic, share, members == [self._session.client_id])
        self._tell(topic, queues, share)

    def _tell(self, topic: str, queues: list[MessageQueue], share: list[MessageQueue]) -> None:
        listener, now = self._listener, (queues, list(share))
        if listener is None or is_retry_or_dlq(topic) or self._told.get(topic) == now:
            return
        self._told[topic] = now
        try:
            listener(topic, list(queues), list(share))
        except Exception:  # a user's listener may raise; the queues are ours nevertheless
            logger.exception("queue listener failed: topic=%s", topic)

    def _ask_strategy(self, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        try:
            return self._strategy(self._session.client_id, queues, members)
        except RocketpostError:
            raise
        except Exception as error:  # a user's strategy may raise; the next round calls it again
            logger.exception("strategy failed: name=%s", self._strategy.name)
            raise ClientError(f"the strategy {self._strategy.name} failed: {error}") from error

    async def _members(self, topic: str) -> list[str]:
        address = self._session.routes.some_broker(topic)
        if address is None:
            raise RouteNotFound(f"no broker of the topic {topic} is known")
        response = await self._session.call(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupRequest(consumer_group=self._group),
        )
        ids = set(decode_body(response.body, ConsumerIds).consumer_id_list)
        return sorted(ids, key=java_order)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
