"""Administration of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rocketpost.client.admin.changes import (
    changed_attributes,
    check_same,
    set_attributes,
    sign_attributes,
)
from rocketpost.client.admin.cluster import tell_all
from rocketpost.client.session import Session
from rocketpost.codec.bodies.group import GroupNames
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.offset import decode_consume_state
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
from rocketpost.codec.faults import IllegalOperation, RequestCodeNotSupported, TopicNotExist
from rocketpost.codec.headers.namesrv import DeleteTopic
from rocketpost.codec.headers.offset import ConsumeStats
from rocketpost.codec.headers.topic import CreateTopic, CreateTopics, TopicRequest
from rocketpost.model.changes import apply
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.shrinking import Behind, hidden_messages, is_hiding
from rocketpost.model.topic import TopicChange, TopicConfig


class TopicAdmin:
    """Creates, changes, deletes and inspects topics."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(self, address: str, config: TopicConfig) -> None:
        """Create a topic on a broker; does nothing if it exists with the same configuration.

        Raises:
            AlreadyExists: It exists with another configuration; use :meth:`update`.
        """
        config = msgspec.structs.replace(config, attributes=set_attributes(config.attributes))
        try:
            present = await self.config(address, config.topic_name)
        except TopicNotExist:
            await self._put(address, config, sign_attributes({}, config.attributes))
            return
        check_same(f"the topic {config.topic_name} at {address}", present, config)

    async def update(
        self,
        address: str,
        topic: str,
        *,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        topic_filter_type: str | None = None,
        topic_sys_flag: int | None = None,
        attributes: Mapping[str, str | None] | None = None,
        force: bool = False,
    ) -> TopicConfig:
        """Change a topic on a broker and return its new configuration. None means unchanged.

        Args:
            address: The broker.
            topic: The topic.
            read_queue_nums: Number of queues for consumers.
            write_queue_nums: Number of queues for producers.
            perm: 2 write, 4 read, 6 both.
            order: Whether it is an ordered topic.
            topic_filter_type: SINGLE_TAG or MULTI_TAG.
            topic_sys_flag: 1 for a topic of a unit, 2 for one with readers in a unit.
            attributes: Values by name, None to remove one; others stay unchanged.
            force: Whether the change may hide unconsumed messages.

        Raises:
            TopicNotExist: The broker does not have it.
            IllegalOperation: The change would hide messages; nothing was changed.
        """
        before = await self.config(address, topic)
        change = TopicChange(
            topic_name=topic,
            read_queue_nums=read_queue_nums,
            write_queue_nums=write_queue_nums,
            perm=perm,
            order=order,
            topic_filter_type=topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )
        after = msgspec.structs.replace(
            apply(change, before),
            attributes=changed_attributes(before.attributes, attributes or {}),
        )
        if after == before:
            return before
        if not force and (hidden := await self.hidden_by(address, before, after)):
            raise IllegalOperation(f"the topic {topic} at {address} is unchanged: {hidden}")
        signed = sign_attributes(before.attributes, after.attributes)
        await self._put(address, after, signed, force=force)
        return after

    async def _put(
        self, address: str, config: TopicConfig, attributes: dict[str, str], *, force: bool = False
    ) -> None:
        """Send a complete configuration, which RocketMQ's brokers expect; attributes are signed."""
        changes = ",".join(
            f"{name}={value}" if name.startswith("+") else name
            for name, value in attributes.items()
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
            attributes=changes or None,
            force=force,
        )
        await self._session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def put_many(
        self, address: str, changes: Sequence[TopicChange], *, force: bool = False
    ) -> None:
        """Create or change several topics on a broker, all or none; None means unchanged.

        Raises:
            IllegalOperation: A change would hide messages and is not forced.
        """
        table = (await self.table(address)).topic_config_table
        wanted = []
        for change in changes:
            before = table.get(change.topic_name)
            after = apply(change, before or TopicConfig())
            if before and not force and (hidden := await self.hidden_by(address, before, after)):
                raise IllegalOperation(
                    f"nothing is changed at {address}: {change.topic_name}: {hidden}"
                )
            wanted.append(after)
        body = encode_topic_configs(wanted)
        await self._session.call(
            address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, CreateTopics(force=force), body=body
        )

    async def hidden_by(self, address: str, before: TopicConfig, after: TopicConfig) -> str | None:
        """Describe the messages of a broker that a change would hide, or return None."""
        if after.read_queue_nums >= before.read_queue_nums:
            return None
        gone = range(after.read_queue_nums, before.read_queue_nums)
        behind = await self._behind(address, before.topic_name, gone)
        if not is_hiding(before, after, behind):
            return None
        return hidden_messages(before, after, behind)

    async def _behind(self, address: str, topic: str, queue_ids: Iterable[int]) -> list[Behind]:
        """Return the unconsumed messages in some queues of a broker, by group."""
        states = {
            queue.queue_id: state
            for queue, state in (await self.state_at(address, topic)).queues.items()
        }
        filled = {
            queue_id: states[queue_id]
            for queue_id in queue_ids
            if queue_id in states and states[queue_id].max_offset > states[queue_id].min_offset
        }
        if not filled:
            return []
        response = await self._session.call(
            address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic)
        )
        groups = decode_body(response.body, GroupNames).group_list
        if not groups:
            return [
                Behind(queue_id, "", state.max_offset - state.min_offset)
                for queue_id, state in filled.items()
            ]
        found = []
        for group in groups:
            header = ConsumeStats(consumer_group=group, topic=topic)
            answer = await self._session.call(address, RequestCode.GET_CONSUME_STATS, header)
            progress = {
                queue.queue_id: each.consumer_offset
                for queue, each in decode_consume_state(answer.body).queues.items()
            }
            for queue_id, state in filled.items():
                count = state.max_offset - max(progress.get(queue_id, 0), state.min_offset)
                if count > 0:
                    found.append(Behind(queue_id, group, count))
        return found

    async def delete(self, topic: str, addresses: list[str], *, cluster: str | None = None) -> None:
        """Delete a topic on brokers and then on every name server."""
        for address in addresses:
            await self._session.call(
                address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic)
            )
        header = to_fields(DeleteTopic(topic=topic, cluster_name=cluster))
        await tell_all(self._session, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def config(self, address: str, topic: str) -> TopicConfig:
        """Return the configuration of a topic on a broker.

        Raises:
            TopicNotExist: The broker does not have it.
        """
        try:
            response = await self._session.call(
                address, RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=topic)
            )
        except RequestCodeNotSupported:  # a broker of RocketMQ 4
            table = (await self.table(address)).topic_config_table
            if topic not in table:
                raise TopicNotExist(f"{address} does not have the topic {topic}") from None
            return table[topic]
        return decode_body(response.body, TopicConfig)

    async def table(self, address: str) -> TopicTableBody:
        """Return every topic of a broker."""
        response = await self._session.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_topic_table(response.body)

    async def system_topics(self, address: str) -> list[str]:
        """Return the system topics of a broker."""
        response = await self._session.call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return decode_topic_list(response.body).topic_list

    async def state(self, topic: str) -> TopicState:
        """Return the offsets and times of every queue of a topic, on all its brokers.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        route = await self._session.routes.fetch(topic)
        readers = [broker.reader for broker in route.broker_datas if broker.reader]
        states = await asyncio.gather(*(self.state_at(address, topic) for address in readers))
        merged = TopicState(queues={}, put_tps=sum(state.put_tps for state in states))
        for state in states:
            merged.queues.update(state.queues)
        return merged

    async def state_at(self, address: str, topic: str) -> TopicState:
        """Return the offsets and times of the queues of a topic on one broker.

        Raises:
            TopicNotExist: The broker does not have it.
        """
        response = await self._session.call(
            address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=topic)
        )
        return decode_topic_state(response.body)

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that read a topic, from one of its brokers."""
        await self._session.routes.fetch(topic)
        address = self._session.routes.some_broker(topic)
        assert address is not None  # every route has a broker
        response = await self._session.call(
            address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic)
        )
        return decode_body(response.body, GroupNames).group_list
