"""Routes of topics on all brokers, fetched from the name servers as this broker needs them.

A route is fetched at the first request for it, and refreshed while requests for it continue. While
no name server answers, the last known route stays valid. A broker without name servers knows only
its own queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.namesrv import GetRoute
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue, TopicRoute
from rocketpost.model.topic import PERM_READ
from rocketpost.server.peers import Peers

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 30.0
TOPICS_MAX: Final = 32_768
"""Most topics that are followed; requests for others always ask a name server."""
QUEUES_MAX: Final = 65_536
"""Most queues of one topic; a route with more is skipped."""
ROUNDS_UNASKED: Final = 20
"""Number of rounds without a request after which a topic is no longer followed."""
_ANSWER_SECONDS: Final = 1.0

Queues = list[MessageQueue]


class _Known:
    __slots__ = ("queues", "unasked")

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.unasked = 0


class RouteView:
    """Routes of topics on all brokers. Belongs to the event loop.

    Args:
        name_servers: The addresses of the name servers.
        own_queues: Returns the readable queues of a topic on this broker, None if it is unknown.
        peers: Makes the connections.
    """

    def __init__(
        self,
        *,
        name_servers: Sequence[str],
        own_queues: Callable[[str], Queues | None],
        peers: Peers | None = None,
    ) -> None:
        self._name_servers = list(name_servers)
        self._own_queues = own_queues
        self.poll_seconds = POLL_SECONDS
        """Time between two refreshes of the followed topics."""
        self._known: dict[str, _Known] = {}
        self._fetching: dict[str, asyncio.Future[Queues | None]] = {}
        self._connector = (peers or Peers()).connector()

    def __len__(self) -> int:
        return len(self._known)

    def use(self, name_servers: Sequence[str]) -> None:
        """Ask these name servers from now on."""
        for gone in set(self._name_servers) - set(name_servers):
            self._connector.drop(gone)
        self._name_servers = list(name_servers)

    async def queues(self, topic: str) -> Queues | None:
        """Return the readable queues of a topic on all brokers; None if no name server knows it.

        Raises:
            RocketpostError: No name server answers, and no earlier route is known.
        """
        if not self._name_servers:
            return self._own_queues(topic)
        known = self._known.get(topic)
        if known is not None:
            known.unasked = 0
            return known.queues
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = asyncio.ensure_future(self._fetch(topic))
            fetching.add_done_callback(lambda done: self._on_fetch_end(topic, done))
        return await asyncio.shield(fetching)

    async def run(self) -> None:
        """Refresh the followed routes until cancelled."""
        while True:
            await asyncio.sleep(self.poll_seconds)
            try:
                for topic in list(self._known):
                    await self._refresh(topic)
            except RocketpostError as error:
                logger.info("routes not refreshed: reason=%s", error)

    async def close(self) -> None:
        """Close the connections to the name servers."""
        await self._connector.close()

    async def _refresh(self, topic: str) -> None:
        known = self._known[topic]
        known.unasked += 1
        if known.unasked > ROUNDS_UNASKED:
            del self._known[topic]
            return
        queues = await self._fetch(topic)
        if queues is None:
            del self._known[topic]
        else:
            known.queues = queues

    def _on_fetch_end(self, topic: str, done: asyncio.Future[Queues | None]) -> None:
        del self._fetching[topic]
        if done.cancelled() or done.exception() is not None:
            return
        queues = done.result()
        if queues is not None and len(self._known) < TOPICS_MAX:
            self._known[topic] = _Known(queues)

    async def _fetch(self, topic: str) -> Queues | None:
        failure: RocketpostError | None = None
        for address in list(self._name_servers):
            try:
                answer = await self._ask(address, topic)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                answer.raise_for_code()
                return _readable(topic, decode_route(answer.body))
            except RocketpostError as error:
                failure = error
                # The next request goes to another one first.
                if address in self._name_servers:
                    self._name_servers.remove(address)
                    self._name_servers.append(address)
        assert failure is not None
        raise failure

    async def _ask(self, address: str, topic: str) -> Command:
        connection = await self._connector.connect(address)
        return await connection.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            fields=to_fields(GetRoute(topic=topic, accept_standard_json_only=True)),
            timeout=_ANSWER_SECONDS,
        )


def _readable(topic: str, route: TopicRoute) -> Queues | None:
    rows = [data for data in route.queue_datas if data.perm & PERM_READ]
    if sum(max(data.read_queue_nums, 0) for data in rows) > QUEUES_MAX:
        logger.warning("route ignored: topic=%s reason=more than %s queues", topic, QUEUES_MAX)
        return None
    queues = [
        MessageQueue(data.broker_name, queue_id, topic)
        for data in rows
        for queue_id in range(data.read_queue_nums)
    ]
    return sorted(queues, key=lambda queue: queue.sort_key)
