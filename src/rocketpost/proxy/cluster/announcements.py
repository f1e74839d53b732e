"""The connections by which brokers of a cluster know one client of the proxy.

To a broker, a connection is one client. Requests of all clients of the proxy share connections, so
a client also has some of its own, to the brokers of its topics. They carry heartbeats, and the
requests of brokers to the client: tools see it, and can ask it for its state.
"""

from __future__ import annotations

import asyncio
import logging

from rocketpost.client.session import Session
from rocketpost.client.tls import client_context
from rocketpost.codec.bodies.client import Heartbeat, encode_heartbeat
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.errors import RocketpostError
from rocketpost.proxy.backend import CALL_SECONDS, BrokerRequest, Identity
from rocketpost.proxy.registration import VERSION
from rocketpost.transport.connector import Connector

logger = logging.getLogger(__name__)


class Announcements:
    """The own connections of one client. Belongs to the event loop.

    Args:
        session: The connections of the proxy, which knows routes.
        identity: The client.
        on_request: Serves requests of brokers to the client.
    """

    def __init__(self, session: Session, identity: Identity, on_request: BrokerRequest) -> None:
        self._session = session
        self._identity = identity
        self._on_request = on_request
        self._connector: Connector | None = None
        self._work: asyncio.Task[None] | None = None
        self._is_closed = False

    def renew(self, heartbeat: Heartbeat) -> None:
        """Send a heartbeat to the brokers of the client's topics, unless the last is under way.

        The client does not wait for that: brokers serve its calls without knowing it.
        """
        if self._is_closed or not (heartbeat.consumer_data_set or heartbeat.producer_data_set):
            return
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._renew(heartbeat))

    def close(self) -> None:
        """Close the connections; brokers forget the client."""
        self._is_closed = True
        if self._work is not None:
            self._work.cancel()
        if self._connector is not None:
            for connection in list(self._connector.connections.values()):
                connection.close()

    async def _renew(self, heartbeat: Heartbeat) -> None:
        if self._connector is None:
            config = self._session.config
            self._connector = Connector(
                on_request=self._on_request,
                sign=config.credentials.sign if config.credentials else None,
                tls=client_context(config),
                sender=(self._identity.language, VERSION),
            )
        body = encode_heartbeat(heartbeat)
        addresses = await self._addresses(heartbeat)
        for address in set(self._connector.connections) - addresses:
            self._connector.drop(address)  # it serves the client's topics no more
        await asyncio.gather(*(self._tell(self._connector, each, body) for each in addresses))

    async def _addresses(self, heartbeat: Heartbeat) -> set[str]:
        """Return the masters of the client's topics."""
        topics = {each.group_name for each in heartbeat.producer_data_set}
        for data in heartbeat.consumer_data_set:
            topics.update(each.topic for each in data.subscription_data_set)
        found: set[str] = set()
        for topic in topics:
            try:
                route = await self._session.routes.route(topic)
            except RocketpostError:
                continue  # a topic that does not exist, or not yet
            found.update(each.master for each in route.broker_datas if each.master)
        return found

    async def _tell(self, connector: Connector, address: str, body: bytes) -> None:
        try:
            connection = await connector.connect(address)
            answer = await connection.request(
                RequestCode.HEART_BEAT, body=body, timeout=CALL_SECONDS
            )
        except RocketpostError as error:
            logger.info(
                "client not announced: client=%s broker=%s reason=%s",
                self._identity.client_id,
                address,
                error,
            )
            return
        if answer.code != ResponseCode.SUCCESS:
            logger.warning(
                "client not announced: client=%s broker=%s reason=%s",
                self._identity.client_id,
                address,
                answer.remark,
            )
