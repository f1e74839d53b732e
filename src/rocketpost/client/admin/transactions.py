"""Administration of pending and discarded transactions, read from the broker's log.

A broker keeps half messages and op messages in two topics, and its progress among the offsets of
its own group. Reading these shows the pending transactions, on Apache's brokers too. A transaction
that ended in the last seconds may still show, because brokers write op messages in batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import NoMessage
from rocketpost.codec.headers.transaction import ResumeCheck
from rocketpost.codec.record import parse_message_id, unpack_host
from rocketpost.errors import RemoteProtocolError, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.group import Subscription
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.route import MessageQueue

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_PULL_SECONDS: Final = 10.0


class HalfMessage(NamedTuple):
    """The message of a pending or discarded transaction."""

    message: ReceivedMessage

    @property
    def id(self) -> str:
        """The transaction id: the unique id of the message."""
        return self.message.message_id

    @property
    def topic(self) -> str:
        """The topic to which a commit delivers it."""
        return self.message.properties.get(names.REAL_TOPIC, "")

    @property
    def group(self) -> str:
        """The producer group whose members the broker asks."""
        return self.message.properties.get(names.PRODUCER_GROUP, "")

    @property
    def checks(self) -> int:
        """The number of checks so far."""
        text = self.message.properties.get(names.TRANSACTION_CHECKS, "0")
        return int(text) if text.isdecimal() else 0


class TransactionAdmin:
    """Lists transactions and resumes checks of discarded ones."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = OffsetCalls(session)

    async def pending(self) -> AsyncIterator[HalfMessage]:
        """Yield pending transactions, broker by broker, oldest first.

        Raises:
            RouteNotFound: No broker has transactions.
            Fault: A broker refuses.
        """
        for queue in await self._queues(HALF_TOPIC):
            ops = MessageQueue(queue.broker_name, queue.queue_id, OP_HALF_TOPIC)
            start = await self._calls.group_offset(TRANSACTION_GROUP, queue) or 0
            done: set[int] = set()
            op_start = await self._calls.group_offset(TRANSACTION_GROUP, ops) or 0
            async for message in self._read(ops, op_start):
                done.update(_numbers(message.body))
            # Copies of one half message follow each other; the last one counts.
            found: dict[tuple[str, int], HalfMessage] = {}
            async for message in self._read(queue, start):
                if message.queue_offset not in done:
                    found[message.message_id, message.born_ms] = HalfMessage(message)
            for half in found.values():
                yield half

    async def discarded(self) -> AsyncIterator[HalfMessage]:
        """Yield discarded transactions, broker by broker, oldest first.

        Raises:
            Fault: A broker refuses.
        """
        try:
            queues = await self._queues(CHECK_MAX_TOPIC)
        except RouteNotFound:
            return  # the topic is created with the first discarded transaction
        for queue in queues:
            async for message in self._read(queue, 0):
                yield HalfMessage(message)

    async def resume(self, message_id: str) -> HalfMessage | None:
        """Resume the checks of a discarded transaction, from the first one on.

        Args:
            message_id: The offset id of the discarded message, or its transaction id.

        Returns:
            The message, if it was found by its transaction id.

        Raises:
            NoMessage: No discarded transaction has this id.
            Fault: The broker refuses: the transaction is pending, or was committed since.
        """
        half = None
        try:
            host, _ = parse_message_id(message_id)
            offset_id = message_id
        except RemoteProtocolError:
            host = b""
        if not host or not _is_address(host):
            half = await self._find(message_id)
            offset_id = half.message.offset_id
            host, _ = parse_message_id(offset_id)
        ip, port = unpack_host(host)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        header = ResumeCheck(msg_id=offset_id, topic=CHECK_MAX_TOPIC)
        await self._session.call(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
        return half

    async def _find(self, transaction_id: str) -> HalfMessage:
        newest = None
        async for half in self.discarded():
            if half.id == transaction_id:
                newest = half
        if newest is None:
            raise NoMessage(f"no transaction with the id {transaction_id} was discarded")
        return newest

    async def _queues(self, topic: str) -> list[MessageQueue]:
        return subscribe_queues(topic, await self._session.routes.fetch(topic))

    async def _read(self, queue: MessageQueue, start: int) -> AsyncIterator[ReceivedMessage]:
        offset = max(start, await self._calls.min_offset(queue))
        end = await self._calls.max_offset(queue)
        fetcher, everything = Fetcher(self._session, TOOLS_GROUP), Subscription(topic=queue.topic)
        while offset < end:
            wish = PullQuery(queue, offset, everything)
            result = await fetcher.pull(wish, timeout=_PULL_SECONDS)
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            if result.status is PullStatus.NO_NEW_MSG:
                return
            offset = max(result.next_offset, offset + 1)


def _numbers(body: bytes) -> list[int]:
    return [int(word) for word in body.decode("ascii", "replace").split(",") if word.isdecimal()]


def _is_address(host: bytes) -> bool:
    """Tell whether bytes can be a broker's address; a transaction id may look like an offset id."""
    return 0 < unpack_host(host)[1] < 65536
