"""Topics, asked of brokers."""

from __future__ import annotations

import asyncio

from rocketpost.client.admin.cluster import tell_all
from rocketpost.client.session import Session
from rocketpost.codec.bodies.group import GroupNames
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.topic import (
    TopicState,
    TopicTableBody,
    decode_topic_list,
    decode_topic_state,
    decode_topic_table,
    encode_topic_configs,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.namesrv import DeleteTopic
from rocketpost.codec.headers.topic import CreateTopic, TopicRequest
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.topic import TopicConfig


class TopicAdmin:
    """Creates, deletes and looks at topics."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on a broker.

        ``config.attributes`` holds the changes: ``+name`` to set and ``-name`` to take away.
        """
        attributes = ",".join(
            f"{name}={value}" if name.startswith("+") else name
            for name, value in config.attributes.items()
        )
        header = CreateTopic(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes or None,
        )
        await self._session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def create_many(self, address: str, configs: list[TopicConfig]) -> None:
        """Create or change several topics on a broker."""
        body = encode_topic_configs(configs)
        await self._session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    async def delete(self, topic: str, addresses: list[str], *, cluster: str | None = None) -> None:
        """Delete a topic on brokers and then with every name server."""
        for address in addresses:
            await self._session.call(
                address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic)
            )
        header = to_fields(DeleteTopic(topic=topic, cluster_name=cluster))
        await tell_all(self._session, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def config(self, address: str, topic: str) -> TopicConfig:
        """Return the configuration of a topic on a broker."""
        response = await self._session.call(
            address, RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=topic)
        )
        return decode_body(response.body, TopicConfig)

    async def table(self, address: str) -> TopicTableBody:
        """Return every topic of a broker."""
        response = await self._session.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_topic_table(response.body)

    async def system_topics(self, address: str) -> list[str]:
        """Return the topics that a broker keeps for itself."""
        response = await self._session.call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return decode_topic_list(response.body).topic_list

    async def state(self, topic: str) -> TopicState:
        """Return the offsets and times of every queue of a topic, on all its brokers.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        route = await self._session.routes.fetch(topic)
        masters = [broker.master for broker in route.broker_datas if broker.master]
        states = await asyncio.gather(*(self._state_at(address, topic) for address in masters))
        merged = TopicState(queues={}, put_tps=sum(state.put_tps for state in states))
        for state in states:
            merged.queues.update(state.queues)
        return merged

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that read a topic, as one of its brokers knows them."""
        await self._session.routes.fetch(topic)
        address = self._session.routes.some_broker(topic)
        assert address is not None  # a route without brokers is not found
        response = await self._session.call(
            address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic)
        )
        return decode_body(response.body, GroupNames).group_list

    async def _state_at(self, address: str, topic: str) -> TopicState:
        response = await self._session.call(
            address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=topic)
        )
        return decode_topic_state(response.body)
