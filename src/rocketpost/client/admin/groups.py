"""Administration of consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rocketpost.client.admin.changes import (
    changed_attributes,
    check_same,
    set_attributes,
    sign_attributes,
)
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.session import Session
from rocketpost.codec.bodies.assignment import RequestMode, decode_request_modes
from rocketpost.codec.bodies.client import (
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTableBody,
)
from rocketpost.codec.bodies.group import (
    GroupTableBody,
    decode_group_config,
    decode_group_table,
    encode_group_configs,
)
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.offset import (
    ConsumeState,
    TimeSpan,
    TimeSpans,
    decode_consume_state,
    decode_member_offsets,
    decode_queue_offsets,
)
from rocketpost.codec.bodies.topic import decode_topic_list
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import ConsumerNotOnline, GroupNotExist
from rocketpost.codec.headers.client import (
    ConsumerGroupRequest,
    ProducerGroupRequest,
    RunningInfoRequest,
)
from rocketpost.codec.headers.group import DeleteGroup, GroupRequest
from rocketpost.codec.headers.offset import (
    CloneOffset,
    ConsumerStatus,
    ConsumeStats,
    ConsumeTimeSpan,
    ResetOffset,
    UpdateOffset,
)
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RouteNotFound
from rocketpost.model.changes import apply
from rocketpost.model.group import GroupChange, GroupConfig
from rocketpost.model.names import retry_topic
from rocketpost.model.route import MessageQueue

_RELAY_SECONDS = 15.0
"""The broker waits up to ten seconds for the client to which it relays a request."""


class GroupAdmin:
    """Creates, changes, deletes and inspects consumer groups."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(self, address: str, config: GroupConfig) -> None:
        """Create a group on a broker; does nothing if it exists with the same configuration.

        Raises:
            AlreadyExists: It exists with another configuration; use :meth:`update`.
        """
        config = msgspec.structs.replace(config, attributes=set_attributes(config.attributes))
        present = await self._find(address, config.group_name)
        if present is not None:
            check_same(f"the group {config.group_name} at {address}", present, config)
            return
        await self._put(address, config, sign_attributes({}, config.attributes))

    async def update(
        self,
        address: str,
        group: str,
        *,
        consume_enable: bool | None = None,
        consume_from_min_enable: bool | None = None,
        consume_broadcast_enable: bool | None = None,
        consume_message_orderly: bool | None = None,
        consume_timeout_minute: int | None = None,
        retry_queue_nums: int | None = None,
        retry_max_times: int | None = None,
        group_retry_policy: dict[str, Any] | None = None,
        group_sys_flag: int | None = None,
        broker_id: int | None = None,
        which_broker_when_consume_slowly: int | None = None,
        notify_consumer_ids_changed_enable: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> GroupConfig:
        """Change a group on a broker and return its new configuration. None means unchanged.

        The members are those of :class:`~rocketpost.model.group.GroupConfig`; attributes are values
        by name, None to remove one.

        Raises:
            GroupNotExist: The broker does not have it.
        """
        before = await self._find(address, group)
        if before is None:
            raise GroupNotExist(f"{address} does not have the group {group}")
        change = GroupChange(
            group_name=group,
            consume_enable=consume_enable,
            consume_from_min_enable=consume_from_min_enable,
            consume_broadcast_enable=consume_broadcast_enable,
            consume_message_orderly=consume_message_orderly,
            consume_timeout_minute=consume_timeout_minute,
            retry_queue_nums=retry_queue_nums,
            retry_max_times=retry_max_times,
            group_retry_policy=group_retry_policy,
            group_sys_flag=group_sys_flag,
            broker_id=broker_id,
            which_broker_when_consume_slowly=which_broker_when_consume_slowly,
            notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
        )
        after = msgspec.structs.replace(
            apply(change, before),
            attributes=changed_attributes(before.attributes, attributes or {}),
        )
        if after != before:
            await self._put(address, after, sign_attributes(before.attributes, after.attributes))
        return after

    async def put_many(self, address: str, changes: Sequence[GroupChange]) -> None:
        """Create or change several groups on a broker, all or none; None means unchanged."""
        table = (await self.table(address)).subscription_group_table
        body = encode_group_configs(
            [apply(change, table.get(change.group_name) or GroupConfig()) for change in changes]
        )
        await self._session.call(
            address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body
        )

    async def _find(self, address: str, group: str) -> GroupConfig | None:
        # Read the whole table: some brokers create the group when asked for it by name.
        return (await self.table(address)).subscription_group_table.get(group)

    async def _put(self, address: str, config: GroupConfig, attributes: dict[str, str]) -> None:
        """Send a complete configuration, which RocketMQ's brokers expect; attributes are signed."""
        body = encode(msgspec.structs.replace(config, attributes=attributes))
        await self._session.call(
            address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body
        )

    async def delete(self, address: str, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a group on a broker, and optionally its offsets."""
        header = DeleteGroup(group_name=group, clean_offset=clean_offsets)
        await self._session.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def config(self, address: str, group: str) -> GroupConfig:
        """Return the configuration of a group on a broker."""
        response = await self._session.call(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group=group)
        )
        return decode_group_config(response.body)

    async def table(self, address: str) -> GroupTableBody:
        """Return every group of a broker."""
        response = await self._session.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return decode_group_table(response.body)

    async def set_request_mode(self, address: str, mode: RequestMode) -> None:
        """Set whether a group pulls or pops a topic on a broker."""
        await self._session.call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode(mode))

    async def request_modes(self, address: str) -> dict[str, dict[str, RequestMode]]:
        """Return the request modes of a broker, by topic and group."""
        response = await self._session.call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        return decode_request_modes(response.body).message_request_mode_map

    async def progress(self, group: str, topic: str | None = None) -> ConsumeState:
        """Return the progress of a group on all brokers that know it.

        Raises:
            RouteNotFound: No broker knows the group, or the topic.
        """
        readers = await self._readers(topic or retry_topic(group))
        header = ConsumeStats(consumer_group=group, topic=topic or "")
        answers = await asyncio.gather(
            *(
                self._session.call(address, RequestCode.GET_CONSUME_STATS, header)
                for address in readers
            )
        )
        states = [decode_consume_state(answer.body) for answer in answers]
        merged = {queue: value for state in states for queue, value in state.queues.items()}
        tps = sum(state.consume_tps for state in states)
        return ConsumeState(queues=merged, consume_tps=tps)

    async def connections(self, group: str, address: str | None = None) -> ConsumerConnections:
        """Return the connected members of a group and their subscriptions.

        Args:
            group: The group.
            address: The broker to ask; if None, those that know the group, one after the other.

        Raises:
            ConsumerNotOnline: No member is connected.
            RouteNotFound: No broker knows the group.
        """
        header = ConsumerGroupRequest(consumer_group=group)
        failure: ConsumerNotOnline | None = None
        for broker in [address] if address else await self._readers(retry_topic(group)):
            try:
                response = await self._session.call(
                    broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, header
                )
                return decode_body(response.body, ConsumerConnections)
            except ConsumerNotOnline as error:
                failure = error
        raise failure or ConsumerNotOnline(f"no member of the group {group} is connected")

    async def producer_connections(self, group: str, topic: str) -> ProducerConnections:
        """Return the connected members of a producer group, from a broker of ``topic``."""
        header = ProducerGroupRequest(producer_group=group)
        [address, *_] = await self._masters(topic)
        response = await self._session.call(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header
        )
        return decode_body(response.body, ProducerConnections)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """Return the producers connected to a broker, by group."""
        response = await self._session.call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_body(response.body, ProducerTableBody).data

    async def running_info(
        self, address: str, group: str, client_id: str, *, stacks: bool = False
    ) -> bytes:
        """Return a consumer's report about itself as JSON text, optionally with its stacks."""
        header = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stacks)
        response = await self._session.call(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout=_RELAY_SECONDS
        )
        return response.body

    async def topics_of(self, address: str, group: str) -> list[str]:
        """Return the topics that a group reads on a broker."""
        response = await self._session.call(
            address, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequest(group=group)
        )
        return decode_topic_list(response.body).topic_list

    async def time_spans(self, address: str, group: str, topic: str) -> list[TimeSpan]:
        """Return the progress of a group in time, for each queue of a broker."""
        header = ConsumeTimeSpan(topic=topic, group=group)
        response = await self._session.call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        return decode_body(response.body, TimeSpans).consume_time_span_set

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group's offsets to a time; -1 means the end. Returns the new offsets.

        If a broker leaves resets to the members and sees none, the offsets are stored there.

        Args:
            group: The group.
            topic: The topic.
            timestamp_ms: The first message stored at this time or later comes next.
            force: Whether offsets may also move forward, skipping messages.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        header = ResetOffset(group=group, topic=topic, timestamp=timestamp_ms, is_force=force)
        offsets: dict[MessageQueue, int] = {}
        for address in await self._masters(topic):
            try:
                response = await self._session.call(
                    address,
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    header,
                    timeout=_RELAY_SECONDS,
                )
                offsets |= decode_queue_offsets(response.body)
            except ConsumerNotOnline:
                offsets |= await self._reset_offline(address, header)
        return offsets

    async def _reset_offline(self, address: str, wish: ResetOffset) -> dict[MessageQueue, int]:
        header = ConsumeStats(consumer_group=wish.group, topic=wish.topic)
        response = await self._session.call(address, RequestCode.GET_CONSUME_STATS, header)
        offsets = {}
        for queue, progress in decode_consume_state(response.body).queues.items():
            target = progress.broker_offset
            if wish.timestamp >= 0:
                target = await OffsetCalls(self._session).search_offset(queue, wish.timestamp)
            offsets[queue] = progress.consumer_offset
            if wish.is_force or target < progress.consumer_offset:
                await self.set_offset(address, wish.group, queue, target)
                offsets[queue] = target
        return offsets

    async def member_offsets(
        self, address: str, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets in memory of connected members, by client id."""
        header = ConsumerStatus(group=group, topic=topic, client_addr=client_id)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        response = await self._session.call(address, code, header, timeout=_RELAY_SECONDS)
        return decode_member_offsets(response.body)

    async def reset_queue(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """Set a group's offset in one queue, even while members consume. Returns the new offset.

        Raises:
            Fault: The broker refuses; for example because the offset is outside the queue.
        """
        header = ResetOffset(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=offset,
            is_force=True,
        )
        response = await self._session.call(
            address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout=_RELAY_SECONDS
        )
        return decode_queue_offsets(response.body)

    async def set_offset(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset on a broker, even while members consume."""
        header = UpdateOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._session.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def clone_offset(
        self, address: str, source: str, target: str, topic: str, *, offline: bool = False
    ) -> None:
        """Copy the offsets of one group to another on a broker.

        ``offline`` also copies topics that connected consumers of ``source`` no longer read.
        """
        header = CloneOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        await self._session.call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _readers(self, topic: str) -> list[str]:
        """Return a replica of each broker of a topic: the master, or a slave if there is none."""
        route = await self._session.routes.fetch(topic)
        readers = [broker.reader for broker in route.broker_datas if broker.reader]
        if not readers:
            raise RouteNotFound(f"no broker of the topic {topic} has an address")
        return readers

    async def _masters(self, topic: str) -> list[str]:
        route = await self._session.routes.fetch(topic)
        masters = [broker.master for broker in route.broker_datas if broker.master]
        if not masters:
            raise RouteNotFound(f"no broker of the topic {topic} has a master")
        return masters
