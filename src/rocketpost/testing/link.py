"""A bare connection to one broker, for tests that control every request.

No routes, no retries, no heartbeats: each request is sent once, and its answer is the broker's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.bodies.client import LockRequest, LockResponse
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.message import (
    PullMessage,
    PullResponse,
    QueryMessage,
    SendMessageV2,
)
from rocketpost.codec.headers.offset import (
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    UpdateOffset,
)
from rocketpost.codec.headers.timer import RecallHeader
from rocketpost.codec.headers.topic import CreateTopic, TopicRequest
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.codec.lenient_json import encode
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_records, parse_message_id
from rocketpost.errors import ConnectionLost, Fault
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.route import MessageQueue
from rocketpost.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import split_address
from rocketpost.transport.served_connection import ServedConnection

ANSWER_SECONDS: Final = 20.0
_READ_WRITE: Final = 6
_BROKER_NAME: Final = "broker-a"


class SendPart(NamedTuple):
    """One message of a send."""

    body: bytes
    properties: dict[str, str]


class PulledRecords(NamedTuple):
    """The result of a pull."""

    code: int
    next_offset: int
    records: list[Record]


class BrokerLink:
    """One connection to one broker. Belongs to the event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, address: str, *, seconds: float = 5.0) -> Self:
        """Connect to ``host:port``.

        Raises:
            ConnectionLost: Nobody listens there.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(on_request=lambda _, __: None), host, port
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"cannot connect to {address}: {error}") from error
        return cls(connection)

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._connection.is_open

    def close(self) -> None:
        """Close at once."""
        self._connection.abort()

    # -- messages

    def send(
        self,
        topic: str,
        queue_id: int,
        parts: Sequence[SendPart],
        *,
        queue_nums: int = 4,
        sequence: str | None = None,
    ) -> asyncio.Future[Command]:
        """Send one message, or several as a batch; the future gets the broker's answer.

        Sends keep the order of the calls. ``sequence`` is the stamp of an idempotent producer.

        Raises:
            ConnectionLost: The connection is closed.
        """
        batch = len(parts) > 1
        texts = [encode_properties(part.properties) for part in parts]
        body = parts[0].body
        if batch:
            items = [BatchItem(0, p.body, text) for p, text in zip(parts, texts, strict=True)]
            body = encode_batch(items)
        header = SendMessageV2(
            producer_group="link",
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=queue_nums,
            queue_id=queue_id,
            born_timestamp=time.time_ns() // 1_000_000,
            properties="" if batch else texts[0].decode(),
            batch=batch,
            sequence=sequence,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return self._connection.start_request(code, fields=to_fields(header), body=body)

    async def pull(
        self, topic: str, queue_id: int, offset: int, *, count_max: int = 32, hold_ms: int = 0
    ) -> PulledRecords:
        """Read a queue from ``offset`` on.

        Raises:
            Fault: The broker refuses.
        """
        header = PullMessage(
            consumer_group="link",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
            suspend_timeout_millis=hold_ms,
            subscription="*",
            expression_type="TAG",
        )
        answer = await self._ask(RequestCode.PULL_MESSAGE, header)
        if answer.code not in _PULL_CODES:
            answer.raise_for_code()
        next_offset = answer.read(PullResponse).next_begin_offset
        return PulledRecords(answer.code, next_offset, decode_records(answer.body))

    async def read(self, topic: str, queue_id: int, first: int, end: int) -> list[Record]:
        """Return the readable messages in [``first``, ``end``) of a queue.

        Offsets whose messages a power cut has taken are passed over, as consumers do.
        """
        records: list[Record] = []
        while first < end:
            found = await self.pull(topic, queue_id, first)
            if found.next_offset <= first:
                break
            records += found.records
            first = found.next_offset
        return records

    async def find(self, topic: str, key: str) -> list[Record]:
        """Return the messages that the key index has for ``key``."""
        header = QueryMessage(topic=topic, key=key, unique_key_query="true")
        answer = await self._ask(RequestCode.QUERY_MESSAGE, header)
        return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []

    # -- offsets

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the oldest offset of a queue."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the newest message of a queue."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the next offset of a group."""
        header = UpdateOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        (await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code()

    async def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset of a group; None if it has never committed one."""
        header = QueryOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        answer.raise_for_code()
        return answer.read(OffsetResponse).offset

    async def lock(self, group: str, client: str, topic: str, queue_id: int) -> bool:
        """Lock a queue for a client, or renew its lock; return whether it holds the queue now."""
        answer = await self._ask_for_lock(RequestCode.LOCK_BATCH_MQ, group, client, topic, queue_id)
        return bool(decode_body(answer.body, LockResponse).lockOKMQSet)

    async def unlock(self, group: str, client: str, topic: str, queue_id: int) -> None:
        """Give the lock of a client back."""
        await self._ask_for_lock(RequestCode.UNLOCK_BATCH_MQ, group, client, topic, queue_id)

    # -- topics

    async def recall(self, topic: str, handle: str) -> Command:
        """Recall a timed message; return the answer, whatever its code."""
        header = RecallHeader(topic=topic, recall_handle=handle, producer_group="chaos")
        return await self._ask(RequestCode.RECALL_MESSAGE, header)

    async def end_transaction(self, group: str, half: Command, kind: int) -> Command:
        """Commit or roll back the transaction whose half message was answered with ``half``."""
        fields = half.fields
        header = EndTransaction(
            producer_group=group,
            tran_state_table_offset=int(fields["queueOffset"]),
            commit_log_offset=parse_message_id(fields["msgId"])[1],
            commit_or_rollback=kind,
            msg_id=fields["transactionId"],
        )
        return await self._ask(RequestCode.END_TRANSACTION, header)

    async def create_topic(
        self, topic: str, queue_nums: int, *, attributes: str | None = None
    ) -> None:
        """Create or change a topic; ``attributes`` as in mqadmin.

        Raises:
            Fault: The broker refuses.
        """
        header = CreateTopic(
            topic=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=_READ_WRITE,
            attributes=attributes,
        )
        (await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).raise_for_code()

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic.

        Raises:
            Fault: The broker refuses.
        """
        answer = await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))
        answer.raise_for_code()

    async def has_topic(self, topic: str) -> bool:
        """Tell whether the broker knows a topic."""
        answer = await self._ask(RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=topic))
        return answer.code == ResponseCode.SUCCESS

    async def ask(self, code: int, *, seconds: float = ANSWER_SECONDS) -> Command:
        """Return the answer to a request without fields, whatever its code.

        Raises:
            ClientError: There is no answer in time.
        """
        return await self._connection.request(code, timeout=seconds)

    # -- inside

    async def _ask(self, code: int, header: object) -> Command:
        return await self._connection.request(
            code, fields=to_fields(header), timeout=ANSWER_SECONDS
        )

    async def _ask_for_lock(
        self, code: int, group: str, client: str, topic: str, queue_id: int
    ) -> Command:
        queue = MessageQueue(_BROKER_NAME, queue_id, topic)
        body = LockRequest(client_id=client, consumer_group=group, mq_set=[queue])
        answer = await self._connection.request(code, body=encode(body), timeout=ANSWER_SECONDS)
        answer.raise_for_code()
        return answer

    async def _offset(self, code: int, topic: str, queue_id: int) -> int:
        answer = await self._ask(code, QueueRequest(topic=topic, queue_id=queue_id))
        answer.raise_for_code()
        return answer.read(OffsetResponse).offset


_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

__all__ = ["BrokerLink", "Fault", "PulledRecords", "SendPart"]


def let_arrive(connection: ServedConnection, data: bytes) -> None:
    """Let bytes arrive at a server, without a socket, as the event loop does when it reads."""
    at = 0
    while at < len(data):
        room = connection.get_buffer(-1)
        size = min(len(room), len(data) - at)
        room[:size] = data[at : at + size]
        at += size
        connection.buffer_updated(size)
