"""The masters of brokers, found again while a group elects a leader or a broker restarts.

The official clients repeat a failed call at once, and give up after three attempts. A group needs
about a second for a new leader, so the proxy waits for it in their place. It repeats only calls
that were not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketpost.client.admin.cluster import ClusterAdmin
from rocketpost.client.patience import pause_seconds
from rocketpost.client.session import Session
from rocketpost.errors import ConnectionLost, NotConnected, RocketpostError, RouteNotFound
from rocketpost.model.route import BrokerData, TopicRoute

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 2.0
"""Time for which a call waits for a master. The clients themselves wait for three seconds."""
_REFRESH_SECONDS_MIN: Final = 0.1
_KNOWN_SECONDS: Final = 5.0
T = TypeVar("T")


class Masters:
    """The addresses of masters. Belongs to the event loop.

    Args:
        session: The connections to name servers and brokers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cluster = ClusterAdmin(session)
        self._loop = asyncio.get_running_loop()
        self._asked_at = -1.0
        self._question_count = 0
        self._asking: asyncio.Task[None] | None = None
        self._known: list[BrokerData] = []

    async def call(self, broker: str, attempt: Callable[[str], Awaitable[T]]) -> T:
        """Call the master of a broker; wait for a master if it cannot be reached.

        Args:
            broker: The name of the broker.
            attempt: Calls the master at an address.

        Raises:
            RouteNotFound: No such broker is known, or it has no master.
            ConnectionLost: The master could not be reached in time, or was lost after the call
                was sent, so that it may or may not have happened.
        """
        end, pauses = self._loop.time() + PATIENCE_SECONDS, 0
        earlier_count = self._question_count
        routes = self._session.routes
        while True:
            address = routes.peek_master(broker)
            try:
                if address is not None:
                    return await attempt(address)
                failure: RocketpostError = RouteNotFound(f"no master of {broker[:200]!r} is known")
            except NotConnected as error:
                failure = error
            except ConnectionLost:
                await self.refresh()  # for the next call
                raise
            if self._loop.time() >= end:
                raise failure
            await self.refresh()
            # An answer to an earlier question may not have a broker that has just registered.
            if self._question_count > earlier_count and not routes.replicas(broker):
                raise RouteNotFound(f"the broker {broker[:200]!r} is unknown")
            await asyncio.sleep(pause_seconds(pauses))
            pauses += 1

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; wait if none of its brokers has a master.

        Raises:
            RouteNotFound: No name server knows the topic.
            ClientError: No name server answers.
        """
        routes = self._session.routes
        route = await routes.route(topic)
        if all(broker.master for broker in route.broker_datas):
            return route
        end, pauses = self._loop.time() + PATIENCE_SECONDS, 0
        while not any(broker.master for broker in route.broker_datas) and self._loop.time() < end:
            await asyncio.sleep(pause_seconds(pauses))
            pauses += 1
            route = await routes.fetch(topic)
        await routes.refresh(topic)  # soon after a broker has its master again
        return route

    async def all(self) -> list[BrokerData]:
        """Return all brokers, as they were a few seconds ago or are now."""
        if not self._known or self._loop.time() - self._asked_at > _KNOWN_SECONDS:
            await self.refresh()
        return self._known

    async def refresh(self) -> None:
        """Ask the name servers for the addresses of all brokers, once for all callers."""
        if self._asking is None or self._asking.done():
            if self._loop.time() - self._asked_at < _REFRESH_SECONDS_MIN:
                return
            self._asking = asyncio.ensure_future(self._ask())
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        self._question_count += 1
        try:
            info = await self._cluster.info()
        except RocketpostError as error:
            logger.info("addresses of brokers not refreshed: reason=%s", error)
            await self._session.routes.refresh_all()
        else:
            self._known = list(info.broker_addr_table.values())
            for broker in self._known:
                self._session.routes.learn(broker)
        self._asked_at = self._loop.time()
