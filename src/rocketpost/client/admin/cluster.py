"""Administration of name servers: brokers, routes, topics, key-value settings."""

from __future__ import annotations

import asyncio

from rocketpost.client.session import Session
from rocketpost.codec.bodies.cluster import ClusterInfo, decode_cluster
from rocketpost.codec.bodies.kv import decode_kv_table
from rocketpost.codec.bodies.topic import decode_topic_list
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.namesrv import (
    AddWritePermResponse,
    BrokerName,
    KvKey,
    KvNamespace,
    KvValue,
    PutKv,
    TopicsByCluster,
    WipeWritePermResponse,
)
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import TopicRoute
from rocketpost.settings import format_properties, parse_properties


class ClusterAdmin:
    """Sends requests to name servers; changes go to each of them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return self._session.name_servers.addresses

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of ``topic``, always from a name server.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        return await self._session.routes.fetch(topic)

    async def info(self) -> ClusterInfo:
        """Return every broker and cluster."""
        response = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_cluster(response.body)

    async def masters(self, cluster: str) -> list[str]:
        """Return the addresses of the masters of ``cluster``.

        Raises:
            RouteNotFound: There is no such cluster.
        """
        info = await self.info()
        names = info.cluster_addr_table.get(cluster)
        if names is None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise RouteNotFound(f"there is no cluster {cluster}; known are: {known}")
        brokers = [info.broker_addr_table.get(name) for name in sorted(names)]
        return [broker.master for broker in brokers if broker is not None and broker.master]

    async def broker_addresses(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a broker name by broker id.

        Raises:
            RouteNotFound: There is no such broker.
        """
        broker = (await self.info()).broker_addr_table.get(broker_name)
        if broker is None:
            raise RouteNotFound(f"there is no broker {broker_name}")
        return broker.broker_addrs

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        response = await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_topic_list(response.body).topic_list

    async def topics_of(self, cluster: str) -> list[str]:
        """Return the names of the topics of ``cluster``."""
        response = await self._ask(
            RequestCode.GET_TOPICS_BY_CLUSTER, to_fields(TopicsByCluster(cluster=cluster))
        )
        return decode_topic_list(response.body).topic_list

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a key-value setting on every name server."""
        header = PutKv(namespace=namespace, key=key, value=value)
        await self._tell_all(RequestCode.PUT_KV_CONFIG, to_fields(header))

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a key-value setting; None if there is none."""
        header = KvKey(namespace=namespace, key=key)
        response = await self._ask(
            RequestCode.GET_KV_CONFIG, to_fields(header), accept=ResponseCode.QUERY_NOT_FOUND
        )
        return response.read(KvValue).value if response.code == ResponseCode.SUCCESS else None

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key-value setting on every name server."""
        header = KvKey(namespace=namespace, key=key)
        await self._tell_all(RequestCode.DELETE_KV_CONFIG, to_fields(header))

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all settings of a namespace."""
        response = await self._ask(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            to_fields(KvNamespace(namespace=namespace)),
            accept=ResponseCode.QUERY_NOT_FOUND,
        )
        return decode_kv_table(response.body) if response.code == ResponseCode.SUCCESS else {}

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Keep producers off a broker; return the number of topics per name server."""
        header = to_fields(BrokerName(broker_name=broker_name))
        answers = await self._tell_all(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return {
            where: each.read(WipeWritePermResponse).wipe_topic_count
            for where, each in answers.items()
        }

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Let producers use a broker again; return the number of topics per name server."""
        header = to_fields(BrokerName(broker_name=broker_name))
        answers = await self._tell_all(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return {
            where: each.read(AddWritePermResponse).add_topic_count
            for where, each in answers.items()
        }

    async def config(self) -> dict[str, dict[str, str]]:
        """Return the settings of every name server."""
        answers = await self._tell_all(RequestCode.GET_NAMESRV_CONFIG, {})
        return {
            where: parse_properties(answer.body.decode("utf-8", "replace"))
            for where, answer in answers.items()
        }

    async def update_config(self, values: dict[str, str]) -> None:
        """Change settings of every name server."""
        body = format_properties(values).encode()
        await self._tell_all(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body=body)

    async def _ask(
        self, code: int, fields: dict[str, str] | None = None, *, accept: int = 0
    ) -> Command:
        response = await self._session.name_servers.request(code, fields=fields)
        if response.code != accept:
            response.raise_for_code()
        return response

    async def _tell_all(
        self, code: int, fields: dict[str, str], *, body: bytes = b""
    ) -> dict[str, Command]:
        return await tell_all(self._session, code, fields, body=body)


async def tell_all(
    session: Session, code: int, fields: dict[str, str], *, body: bytes = b""
) -> dict[str, Command]:
    """Send a request to every name server, even if one fails; return the answers by address.

    Raises:
        ConnectionLost: A name server cannot be reached; a note lists those that succeeded.
        RequestTimeout: A name server does not answer; the same note.
        Fault: A name server refuses; the same note.
    """
    addresses = sorted(session.name_servers.addresses)

    async def ask(address: str) -> Command:
        response = await session.name_servers.request_at(address, code, fields=fields, body=body)
        response.raise_for_code()
        return response

    outcomes = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
    answers: dict[str, Command] = {}
    failures: list[BaseException] = []
    for address, outcome in zip(addresses, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            failures.append(outcome)
        else:
            answers[address] = outcome
    if failures:
        if answers:
            failures[0].add_note(f"done by the name servers {', '.join(answers)}")
        raise failures[0]
    return answers
