"""Lookup of stored messages by key, unique id, offset id, or queue and offset."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.client.admin.cluster import ClusterAdmin
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.faults import NoMessage
from rocketpost.codec.headers.client import ConsumeDirectly
from rocketpost.codec.headers.message import QueryMessage, ViewMessage
from rocketpost.codec.headers.pop import GetPopState, PopState
from rocketpost.codec.record import (
    Record,
    decode_record,
    decode_records,
    parse_message_id,
    unpack_host,
)
from rocketpost.errors import ConnectionLost, RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.model.route import MASTER_ID, BrokerData, MessageQueue

logger = logging.getLogger(__name__)

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
QUERY_SECONDS: Final = 18.0
PAGE_MAX: Final = 64
"""Default number of messages that a broker returns at a time."""
_RELAY_SECONDS: Final = 15.0
_THREE_DAYS_MS: Final = 3 * 24 * 3600 * 1000
_NOT_FOUND: Final = frozenset({ResponseCode.QUERY_NOT_FOUND})
_ANY_TIME: Final = 2**63 - 1


class MessageAdmin:
    """Finds stored messages."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = _ANY_TIME,
    ) -> list[ReceivedMessage]:
        """Return the newest messages of ``topic`` with ``key``, newest last.

        Args:
            topic: The topic.
            key: One of the messages' keys.
            count_max: Maximum number of messages; brokers are asked page by page.
            begin_ms: Stored at this time or later.
            end_ms: Stored at this time or earlier.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        header = QueryMessage(
            topic=topic,
            key=key,
            max_num=count_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query="false",
        )
        # Indexes keep only hashes, and two keys may share one.
        found = await self._query(header, lambda message: key in message.keys)
        return found[-count_max:]

    async def by_unique_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return the messages with this sender's id; retries keep the id.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        now_ms = time.time_ns() // 1_000_000
        header = QueryMessage(
            topic=topic,
            key=message_id,
            max_num=32,
            begin_timestamp=now_ms - _THREE_DAYS_MS,
            end_timestamp=_ANY_TIME,
            unique_key_query="true",
        )
        return await self._query(header, lambda message: message.message_id == message_id)

    async def indexed_at(
        self, broker: BrokerData, topic: str, key: str, *, unique: bool = True
    ) -> list[ReceivedMessage]:
        """Return the messages of any age with an id or a key in the index of one broker.

        Raises:
            Fault: The broker refuses.
            RequestTimeout: It does not answer.
            ConnectionLost: It cannot be reached.
        """
        header = QueryMessage(
            topic=topic,
            key=key,
            max_num=32,
            begin_timestamp=0,
            end_timestamp=_ANY_TIME,
            unique_key_query="true" if unique else "false",
        )
        found = [
            ReceivedMessage(record, MessageQueue(broker.broker_name, record.queue_id, record.topic))
            for record in await self._query_at(broker, header)
            if record.topic == topic
        ]
        return [each for each in found if key == each.message_id or key in each.keys]

    async def by_offset_id(self, offset_id: str) -> ReceivedMessage:
        """Return the message with this offset id, which names a broker and a position.

        If that broker cannot be reached, slaves are asked: they have its records at its positions.

        Raises:
            RemoteProtocolError: ``offset_id`` is not such an id.
            Fault: There is no such message.
            ConnectionLost: The broker cannot be reached, and no slave has the message.
        """
        host, position = parse_message_id(offset_id)
        ip, port = unpack_host(host)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        broker_name = ""
        try:
            record = await self.at_position(address, position)
        except ConnectionLost:
            found = await self._at_slaves(host, position)
            if found is None:
                raise
            broker_name, record = found
        return ReceivedMessage(record, MessageQueue(broker_name, record.queue_id, record.topic))

    async def _at_slaves(self, host: bytes, position: int) -> tuple[str, Record] | None:
        """Find the record that a broker stored at a position at a slave; return its name, too."""
        brokers = (await ClusterAdmin(self._session).info()).broker_addr_table.values()
        for broker in brokers:
            for broker_id, address in broker.broker_addrs.items():
                if broker_id == MASTER_ID:
                    continue
                try:
                    record = await self.at_position(address, position)
                except RocketpostError as error:
                    logger.debug("not at a slave: address=%s reason=%s", address, error)
                    continue
                if record.store_host_bytes == host:
                    return broker.broker_name, record
        return None

    async def at_position(self, address: str, position: int) -> Record:
        """Return the record at a position of a broker's commit log.

        Raises:
            Fault: There is none.
            RequestTimeout: The broker does not answer.
            ConnectionLost: It cannot be reached.
        """
        response = await self._session.call(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=position)
        )
        return decode_record(response.body)

    async def by_id(self, topic: str, message_id: str) -> ReceivedMessage:
        """Return a message by either kind of id.

        Raises:
            NoMessage: There is none.
            RouteNotFound: The topic is unknown.
        """
        try:
            found = await self.by_offset_id(message_id)
            if found.record.topic == topic:
                return found
        except RocketpostError as error:
            logger.debug("not an offset id: id=%s reason=%s", message_id, error)
        messages = await self.by_unique_id(topic, message_id)
        if not messages:
            raise NoMessage(f"no message of the topic {topic} has the id {message_id}")
        return messages[0]

    async def by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset of a queue.

        Raises:
            NoMessage: There is none.
        """
        wish = PullQuery(queue, offset, Subscription(topic=queue.topic), count_max=1)
        result = await Fetcher(self._session, TOOLS_GROUP).pull(wish, timeout=QUERY_SECONDS)
        if result.status is not PullStatus.FOUND or not result.messages:
            raise NoMessage(f"no message at offset {offset} of {queue}: {result.status.name}")
        return result.messages[0]

    async def popped_until_ms(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> int | None:
        """Return until when a popped message is invisible; None if it is visible.

        Raises:
            RequestCodeNotSupported: It is an Apache broker, which cannot tell.
        """
        header = GetPopState(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, offset=offset
        )
        answer = await self._session.call(address, RequestCode.GET_POP_STATE, header)
        return answer.read(PopState).until_timestamp or None

    async def consume_directly(
        self, address: str, *, group: str, client_id: str, offset_id: str, topic: str = ""
    ) -> bytes:
        """Ask a member of a group to handle a message now; return its JSON report."""
        header = ConsumeDirectly(
            consumer_group=group, client_id=client_id, msg_id=offset_id, topic=topic or None
        )
        response = await self._session.call(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout=_RELAY_SECONDS
        )
        return response.body

    async def _query(
        self, header: QueryMessage, matches: Callable[[ReceivedMessage], bool]
    ) -> list[ReceivedMessage]:
        route = await self._session.routes.fetch(header.topic)
        brokers = [broker for broker in route.broker_datas if broker.broker_addrs]
        answers = await asyncio.gather(
            *(self._pages_at(broker, header) for broker in brokers), return_exceptions=True
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        for failure in failures:
            logger.warning("query failed: topic=%s reason=%s", header.topic, failure)
        found = [
            ReceivedMessage(record, MessageQueue(broker.broker_name, record.queue_id, record.topic))
            for broker, answer in zip(brokers, answers, strict=True)
            if not isinstance(answer, BaseException)
            for record in answer
        ]
        hits = [m for m in found if m.record.topic == header.topic and matches(m)]
        return sorted(hits, key=lambda message: (message.store_ms, message.position))

    async def _pages_at(self, broker: BrokerData, header: QueryMessage) -> list[Record]:
        """Return up to ``max_num`` records; brokers return one page at a time."""
        found: dict[int, Record] = {}
        end_ms = header.end_timestamp
        while True:
            count = min(PAGE_MAX, header.max_num)
            page = await self._query_at(
                broker, msgspec.structs.replace(header, max_num=count, end_timestamp=end_ms)
            )
            before = len(found)
            found |= {record.position: record for record in page}
            if len(found) >= header.max_num or header.max_num <= PAGE_MAX:
                break
            if len(found) == before:
                if len(page) >= PAGE_MAX:  # times in an index have a resolution of one second
                    logger.warning("more messages than a page in one second: some are omitted")
                break
            end_ms = min(record.store_ms for record in page)
        return list(found.values())

    async def _query_at(self, broker: BrokerData, header: QueryMessage) -> list[Record]:
        address = broker.master or next(iter(broker.broker_addrs.values()))
        response = await self._session.call(
            address, RequestCode.QUERY_MESSAGE, header, timeout=QUERY_SECONDS, accept=_NOT_FOUND
        )
        return decode_records(response.body)
