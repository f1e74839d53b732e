"""Facts about a message, collected from brokers and consumers with requests every broker serves.

A question without an answer is noted as unknown; the other questions are asked all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.bodies.group import GroupNames
from rocketpost.codec.bodies.leniency import decode_body, fill
from rocketpost.codec.bodies.offset import decode_consume_state
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.faults import ConsumerNotOnline, RequestCodeNotSupported
from rocketpost.codec.headers.offset import ConsumeStats, OffsetResponse, QueryOffset
from rocketpost.codec.headers.pop import IN_RETRY_TOPIC, IN_RETRY_TOPIC_V2
from rocketpost.codec.headers.pop import real_topic as pop_retry_topic
from rocketpost.codec.headers.topic import TopicRequest
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.diagnosis.fate import Copy, Facts, GroupOffsets, Owner
from rocketpost.diagnosis.running_info import decode_running_info
from rocketpost.errors import RocketpostError, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text
from rocketpost.model.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dlq_topic,
    is_retry_or_dlq,
    retry_topic,
)
from rocketpost.model.route import BrokerData, MessageQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")
_NOT_FOUND: Final = frozenset({ResponseCode.QUERY_NOT_FOUND})


class StoredAt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The broker, file and position where a message is stored."""

    broker_name: str | None
    address: str
    position: int = msgspec.field(name="commitLogOffset")
    size: int
    file: str | None
    indexed: bool | None
    """Whether the message can be found by its id or keys; None if unknown."""


class FactCollector:
    """Collects facts about one message. Belongs to the event loop.

    Args:
        admin: The client to ask with.
        message: The message, in any topic.
        broker: The broker that has it.
        brokers: The brokers of its topic, which may have copies.
    """

    def __init__(
        self,
        admin: AdminClient,
        message: ReceivedMessage,
        broker: BrokerData,
        brokers: list[BrokerData],
    ) -> None:
        self._admin = admin
        self._message = message
        self._broker = broker
        self._brokers = brokers
        self.address = broker.master or next(iter(broker.broker_addrs.values()))

    async def locate(self) -> StoredAt:
        """Return where the message is stored, and whether it is found by its id or keys."""
        message = self._message
        notes: list[str] = []
        config = await _or_note(self._admin.brokers.config(self.address), notes, "the file") or {}
        return StoredAt(
            broker_name=self._broker.broker_name or None,
            address=self.address,
            position=message.position,
            size=message.record.size,
            file=log_file(config, message.position),
            indexed=await self._is_indexed(),
        )

    async def find_due_ms(self) -> int | None:
        """Return when a delayed or timed message is delivered; None for other messages."""
        topic = self._message.record.topic
        if topic == TIMER_TOPIC:
            due = self._message.properties.get(names.TIMER_DELIVER_MS, "")
            due = due or self._message.properties.get(names.TIMER_OUT_MS, "")
            return int(due) if due.isdecimal() else None
        if topic != SCHEDULE_TOPIC:
            return None
        return await self._read_due_ms(self._broker, self._message)

    async def list_groups(self) -> list[str]:
        """Return the groups that have offsets or members for the topic, on any of its brokers."""
        topic = destination_topic(self._message)
        found: set[str] = set()
        for broker in self._brokers:
            response = await _or_note(
                self._admin.session.call(
                    _address(broker),
                    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
                    TopicRequest(topic=topic),
                ),
                [],
                "the groups",
            )
            if response is not None:
                found.update(decode_body(response.body, GroupNames).group_list)
        return sorted(found)

    async def collect(self, group: str, *, delayed_until_ms: int | None) -> Facts:
        """Return everything known about the message in a group."""
        message, unknown = self._message, list[str]()
        topic, queue_id = message.record.topic, message.record.queue_id
        facts = Facts(
            group=group,
            tag=message.tags,
            queue_offset=message.queue_offset,
            properties=message.properties,
            delayed_until_ms=delayed_until_ms,
        )
        if delayed_until_ms is not None:
            return facts
        members = await self._list_members(group, unknown)
        queue = MessageQueue(self._broker.broker_name, queue_id, topic)
        waiting, retries, dead = await self._find_copies(group, unknown)
        config = await _or_note(
            self._admin.groups.config(self.address, group), unknown, "the number of retries"
        )
        offsets = await self._read_offsets(
            group, self._broker, queue, unknown, offset=message.queue_offset
        )
        owners = await self._find_owners(group, members, queue, unknown) if members else []
        return msgspec.structs.replace(
            facts,
            members=len(members.connection_set) if members else 0,
            broadcast=members is not None and members.message_model == "BROADCASTING",
            subscription=members.subscription_table.get(topic) if members else None,
            offsets=offsets,
            waiting=tuple(waiting),
            retries=tuple(retries),
            dead=tuple(dead),
            retry_max=config.retry_max_times if config else None,
            owners=tuple(owners),
            unknown=tuple(unknown),
        )

    # Each of these asks one question.

    async def _is_indexed(self) -> bool | None:
        message = self._message
        unique = message.properties.get(names.UNIQUE_KEY)
        key = unique or next(iter(message.keys), None)
        if key is None:
            return False
        found = await _or_note(
            self._admin.messages.indexed_at(
                self._broker, message.record.topic, key, unique=unique is not None
            ),
            [],
            "the index",
        )
        return None if found is None else any(each.position == message.position for each in found)

    async def _list_members(self, group: str, unknown: list[str]) -> ConsumerConnections | None:
        try:
            return await self._admin.groups.connections(group, self.address)
        except ConsumerNotOnline:
            return None
        except RocketpostError as error:
            unknown.append(f"the members ({error})")
            return None

    async def _read_offsets(
        self,
        group: str,
        broker: BrokerData,
        queue: MessageQueue,
        unknown: list[str],
        *,
        offset: int,
    ) -> GroupOffsets:
        call = self._admin.session.call
        header = QueryOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        answer = await _or_note(
            call(_address(broker), RequestCode.QUERY_CONSUMER_OFFSET, header, accept=_NOT_FOUND),
            unknown,
            "the offset",
        )
        stats = ConsumeStats(consumer_group=group, topic=queue.topic)
        state = await _or_note(
            call(_address(broker), RequestCode.GET_CONSUME_STATS, stats),
            unknown,
            "the pulled offset",
        )
        progress = None
        if state is not None:
            queues = decode_consume_state(state.body).queues.items()
            progress = next((at for each, at in queues if each.queue_id == queue.queue_id), None)
        known = answer is not None and answer.code == ResponseCode.SUCCESS
        return GroupOffsets(
            committed=answer.read(OffsetResponse).offset if answer is not None and known else None,
            pulled=progress.pull_offset if progress is not None else None,
            popped_until_ms=await self._read_popped_until_ms(group, broker, queue, unknown, offset),
        )

    async def _read_popped_until_ms(
        self,
        group: str,
        broker: BrokerData,
        queue: MessageQueue,
        unknown: list[str],
        offset: int,
    ) -> int | None:
        ask = self._admin.messages.popped_until_ms
        try:
            return await ask(_address(broker), group, queue, offset)
        except RequestCodeNotSupported:
            return None  # not a broker of Rocketpost
        except RocketpostError as error:
            unknown.append(f"whether it is popped ({error})")
            return None

    async def _find_copies(
        self, group: str, unknown: list[str]
    ) -> tuple[list[Copy], list[tuple[Copy, GroupOffsets]], list[Copy]]:
        message = self._message
        unique = message.properties.get(names.UNIQUE_KEY)
        if is_retry_or_dlq(message.record.topic):
            return [], [], []  # it is a copy itself; its group reads it like any message
        if unique is None:
            unknown.append("retries and dead letters (the message has no unique id)")
            return [], [], []
        waiting: list[Copy] = []
        retries: list[tuple[Copy, GroupOffsets]] = []
        dead: list[Copy] = []
        for broker in self._brokers:
            for each in await self._look_up(broker, SCHEDULE_TOPIC, unique, unknown):
                if each.properties.get(names.REAL_TOPIC) == retry_topic(group):
                    due_ms = await self._read_due_ms(broker, each)
                    waiting.append(_describe_copy(each, due_ms=due_ms))
            for each in await self._look_up(broker, retry_topic(group), unique, unknown):
                retries.append(await self._examine_retry(group, broker, each, unknown))
            for topic in self._pop_retry_topics(group):
                for each in await self._look_up(broker, topic, unique, unknown):
                    retries.append(await self._examine_retry(group, broker, each, unknown))
            for each in await self._look_up(broker, dlq_topic(group), unique, unknown):
                dead.append(_describe_copy(each))
        return waiting, retries, dead

    def _pop_retry_topics(self, group: str) -> list[str]:
        topic = self._message.record.topic
        return [pop_retry_topic(form, group, topic) for form in (IN_RETRY_TOPIC, IN_RETRY_TOPIC_V2)]

    async def _examine_retry(
        self, group: str, broker: BrokerData, copy: ReceivedMessage, unknown: list[str]
    ) -> tuple[Copy, GroupOffsets]:
        offset = copy.queue_offset
        offsets = await self._read_offsets(group, broker, copy.queue, unknown, offset=offset)
        return _describe_copy(copy), offsets

    async def _look_up(
        self, broker: BrokerData, topic: str, unique: str, unknown: list[str]
    ) -> list[ReceivedMessage]:
        what = f"copies in {topic} on {broker.broker_name}"
        found = await _or_note(
            self._admin.messages.indexed_at(broker, topic, unique), unknown, what
        )
        # A repeated send has the same unique id, but another origin.
        origins = {None, self._message.offset_id, unique}
        return [
            each
            for each in found or []
            if each.properties.get(names.ORIGIN_MESSAGE_ID) in origins and each.message_id == unique
        ]

    async def _read_due_ms(self, broker: BrokerData, waiting: ReceivedMessage) -> int:
        """Return when a delayed message is due: its queue entry has the time in place of a tag."""
        entries = await _or_note(
            self._admin.brokers.queue_entries(
                _address(broker),
                SCHEDULE_TOPIC,
                waiting.record.queue_id,
                index=waiting.queue_offset,
                count=1,
            ),
            [],
            "when it is due",
        )
        data = entries.queue_data if entries is not None else []
        return data[0].tags_code if data else waiting.store_ms

    async def _find_owners(
        self,
        group: str,
        members: ConsumerConnections,
        queue: MessageQueue,
        unknown: list[str],
    ) -> list[Owner]:
        async def ask(client_id: str) -> Owner | None:
            data = await _or_note(
                self._admin.groups.running_info(self.address, group, client_id),
                unknown,
                f"the queues of {client_id}",
            )
            if data is None:
                return None
            values = decode_running_info(data).queues.get(queue)
            if values is None:
                return None
            return Owner(
                client_id=client_id,
                locked=fill(bool, values.get("locked", False)),
                lock_ms=fill(int, values.get("lastLockTimestamp", 0)),
                cached_first=fill(int, values.get("cachedMsgMinOffset", 0)),
                cached_last=fill(int, values.get("cachedMsgMaxOffset", 0)),
                cached_count=fill(int, values.get("cachedMsgCount", 0)),
            )

        clients = sorted({each.client_id for each in members.connection_set})
        return [owner for owner in await map_concurrently(clients, ask) if owner is not None]


async def find_broker(admin: AdminClient, message: ReceivedMessage) -> BrokerData:
    """Return the broker that has a message; its name is empty if no name server knows it."""
    address = host_text(message.store_host)
    for broker in (await admin.cluster.info()).broker_addr_table.values():
        if broker.broker_name == message.queue.broker_name or (
            not message.queue.broker_name and address in broker.broker_addrs.values()
        ):
            return broker
    return BrokerData(broker_name="", broker_addrs={0: address}, cluster="")


async def list_brokers(admin: AdminClient, topic: str) -> list[BrokerData]:
    """Return the brokers of a topic that can be asked; none if there is no such topic."""
    try:
        route = await admin.cluster.route(topic)
    except RouteNotFound:
        return []
    return [broker for broker in route.broker_datas if broker.broker_addrs]


def log_file(config: Mapping[str, str], position: int) -> str | None:
    """Return the segment of the commit log that contains a position, by a broker's settings."""
    size = config.get("mappedFileSizeCommitLog", "")
    if not size.isdecimal() or int(size) == 0:
        return None
    name = f"{position - position % int(size):020d}"
    folder, root = config.get("storePathCommitLog"), config.get("storePathRootDir")
    if folder:
        return f"{folder}/{name}"
    return f"{root}/commitlog/{name}" if root else name


def destination_topic(message: ReceivedMessage) -> str:
    """Return the topic of a message, or the one it will be delivered to if it is delayed."""
    topic = message.record.topic
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return message.properties.get(names.REAL_TOPIC, topic)
    return topic


def _address(broker: BrokerData) -> str:
    return broker.master or next(iter(broker.broker_addrs.values()))


def _describe_copy(message: ReceivedMessage, *, due_ms: int | None = None) -> Copy:
    return Copy(
        topic=message.record.topic,
        broker_name=message.queue.broker_name,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        offset_id=message.offset_id,
        reconsume_times=message.reconsume_times,
        store_ms=message.store_ms,
        due_ms=due_ms,
    )


async def _or_note(work: Awaitable[T], notes: list[str], what: str) -> T | None:
    """Return the result of ``work``; if it fails, add to ``notes`` what is unknown."""
    try:
        return await work
    except RocketpostError as error:
        logger.debug("unknown: what=%s reason=%s", what, error)
        notes.append(f"{what} ({error})")
        return None
