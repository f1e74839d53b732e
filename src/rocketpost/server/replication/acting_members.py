"""The members of a broker's group, as name servers know them, and heartbeats to name servers.

By default (``compatibleWithOldNameSrv``) members come from the route of a topic that every member
registers, and heartbeats are requests for the broker's data version, so that name servers before
RocketMQ 5.0 understand both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from rocketpost.codec.bodies.cluster import decode_member_group
from rocketpost.codec.bodies.registration import encode_data_version
from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.namesrv import (
    BrokerHeartbeat,
    GetMemberGroup,
    GetRoute,
    QueryDataVersion,
)
from rocketpost.errors import RocketpostError
from rocketpost.model.names import MEMBER_TOPIC_PREFIX
from rocketpost.model.topic import DataVersion
from rocketpost.server.context import BrokerContext
from rocketpost.server.peers import Peers
from rocketpost.server.tables.broker_tables import Identity

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 3.0


class MemberSource(Protocol):
    """Knows the members of a broker's group."""

    def use(self, name_servers: Sequence[str]) -> None:
        """Use these name servers from now on."""
        ...

    async def fetch(self) -> dict[int, str]:
        """Return the addresses of the members by id; empty if no name server knows the group.

        Raises:
            RocketpostError: No name server answers.
        """
        ...

    async def send_heartbeats(self) -> None:
        """Tell every name server that this broker is alive."""
        ...

    async def close(self) -> None:
        """Close the connections to the name servers."""
        ...


class Members:
    """Asks name servers for the members of a group. Belongs to the event loop.

    Args:
        identity: The broker's names and address.
        broker_id: Its id.
        name_servers: The addresses of the name servers.
        version: Returns the version of the broker's topics.
        is_old: Whether the name servers may be older than RocketMQ 5.0.
        heartbeat_ms: The time that the connection for a heartbeat may take.
        peers: Makes the connections.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        broker_id: int,
        name_servers: Sequence[str],
        version: Callable[[], DataVersion],
        is_old: bool,
        heartbeat_ms: int,
        peers: Peers | None = None,
    ) -> None:
        self._identity = identity
        self._broker_id = broker_id
        self._name_servers = list(name_servers)
        self._version = version
        self._is_old = is_old
        self._connector = (peers or Peers()).connector(connect_seconds=heartbeat_ms / 1000)

    @classmethod
    def of(cls, context: BrokerContext, *, broker_id: int) -> Self:
        """Return the members of a broker's group, as its settings have it."""
        config = context.broker_config
        return cls(
            identity=context.identity,
            broker_id=broker_id,
            name_servers=context.name_servers(),
            version=lambda: context.tables.topics.version,
            is_old=config.old_name_servers,
            heartbeat_ms=config.broker_heartbeat_timeout_ms,
            peers=context.peers,
        )

    def use(self, name_servers: Sequence[str]) -> None:
        """Use these name servers from now on."""
        for gone in set(self._name_servers) - set(name_servers):
            self._connector.drop(gone)
        self._name_servers = list(name_servers)

    async def fetch(self) -> dict[int, str]:
        """Return the addresses of the members by id; empty if no name server knows the group.

        Raises:
            RocketpostError: No name server answers.
        """
        failure: RocketpostError | None = None
        for address in list(self._name_servers):
            try:
                return await self._ask(address)
            except RocketpostError as error:
                failure = error
                if address in self._name_servers:  # the next one is asked first from now on
                    self._name_servers.remove(address)
                    self._name_servers.append(address)
        if failure is None:
            return {}  # this broker has no name servers, so it is alone
        raise failure

    async def send_heartbeats(self) -> None:
        """Tell every name server that this broker is alive."""
        await asyncio.gather(*map(self._beat, list(self._name_servers)))

    async def close(self) -> None:
        """Close the connections to the name servers."""
        await self._connector.close()

    async def _ask(self, address: str) -> dict[int, str]:
        name, cluster = self._identity.name, self._identity.cluster
        if not self._is_old:
            answer = await self._request(
                address,
                RequestCode.GET_BROKER_MEMBER_GROUP,
                to_fields(GetMemberGroup(cluster_name=cluster, broker_name=name)),
            )
            answer.raise_for_code()
            return dict(decode_member_group(answer.body).broker_addrs)
        answer = await self._request(
            address,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            to_fields(GetRoute(topic=MEMBER_TOPIC_PREFIX + name, accept_standard_json_only=True)),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        answer.raise_for_code()
        for broker in decode_route(answer.body).broker_datas:
            if (broker.broker_name, broker.cluster) == (name, cluster):
                return dict(broker.broker_addrs)
        return {}

    async def _request(self, address: str, code: RequestCode, fields: dict[str, str]) -> Command:
        connection = await self._connector.connect(address)
        return await connection.request(code, fields=fields, timeout=_ANSWER_SECONDS)

    async def _beat(self, address: str) -> None:
        identity = self._identity
        try:
            connection = await self._connector.connect(address)
            if self._is_old:
                version = QueryDataVersion(
                    broker_name=identity.name,
                    broker_addr=identity.address,
                    cluster_name=identity.cluster,
                    broker_id=self._broker_id,
                )
                connection.send_oneway(
                    RequestCode.QUERY_DATA_VERSION,
                    fields=to_fields(version),
                    body=encode_data_version(self._version()),
                )
            else:
                heartbeat = BrokerHeartbeat(
                    cluster_name=identity.cluster,
                    broker_addr=identity.address,
                    broker_name=identity.name,
                    broker_id=self._broker_id,
                )
                connection.send_oneway(RequestCode.BROKER_HEARTBEAT, fields=to_fields(heartbeat))
        except RocketpostError as error:  # the registration reports name servers that are gone
            logger.debug("no heartbeat: name_server=%s reason=%s", address, error)
