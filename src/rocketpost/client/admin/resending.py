"""Resending of a dead letter to its topic, exactly once.

The copy goes to the broker that has the dead letter, with a unique id derived from the dead letter.
Before sending, the key index of that broker tells whether the copy exists already. There is one
attempt; without an answer the call fails, and the next call searches again. ADR 0016 has the
guarantees at every point where a call can be interrupted.
"""

from __future__ import annotations

import asyncio
import enum
import time
from typing import Final, NamedTuple

from rocketpost.client.admin.dead_letter import DeadLetter
from rocketpost.client.admin.resend_lock import ResendLock
from rocketpost.client.producer.queue_choice import select_by_hash
from rocketpost.client.route_cache import PublishRoute, publish_queues
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.message import QueryMessage, SendMessageV2, SendResponse
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import decode_records
from rocketpost.errors import (
    ClientError,
    Fault,
    LocalProtocolError,
    MessageRefused,
    RouteNotFound,
)
from rocketpost.model import properties as names
from rocketpost.model.names import NO_SEND_TOPICS, topic_problem
from rocketpost.model.route import MessageQueue
from rocketpost.model.sysflag import COMPRESSED, COMPRESSION_MASK

PRODUCER_GROUP: Final = "mqadmin_producer"
DEAD_LETTER: Final = "__DEAD_LETTER"
"""The property of a resent message that names the dead letter: topic, slash, id."""

_KEPT: Final = frozenset({names.KEYS, names.TAGS, names.SHARDING_KEY, "BUYER_ID", "INSTANCE_ID"})
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_NOT_FOUND: Final = frozenset({ResponseCode.QUERY_NOT_FOUND})
_LOOK_UP_SECONDS: Final = 18.0
_INDEXED_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.05
_ANY_TIME: Final = 2**63 - 1


class Outcome(enum.Enum):
    """Outcome of one dead letter."""

    SENT = "SENT"
    ALREADY_SENT = "ALREADY_SENT"
    """An earlier call sent it."""
    WOULD_SEND = "WOULD_SEND"
    REFUSED = "REFUSED"
    """It was not sent; see the reason."""


class Resent(NamedTuple):
    """One dead letter and its outcome."""

    letter: DeadLetter
    outcome: Outcome
    offset_id: str | None = None
    """The broker's id of the copy in the original topic."""
    reason: str | None = None


def copy_properties(letter: DeadLetter) -> dict[str, str]:
    """Return the properties of the copy: the user's, without those of retries and deliveries."""
    kept = {
        name: value
        for name, value in letter.message.properties.items()
        if name in _KEPT or name not in names.RESERVED
    }
    kept[names.UNIQUE_KEY] = letter.resent_id
    kept[names.WAIT_STORE] = "true"
    # Typed topics accept it although it is no longer delayed or transactional.
    kept[names.TRANSFER_FLAG] = "true"
    kept[DEAD_LETTER] = f"{letter.message.record.topic}/{letter.id}"
    return kept


class Resender:
    """Resends dead letters one after the other. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        rate: Maximum number of messages per second; None for no limit.
        dry_run: Whether to send nothing.
    """

    def __init__(self, session: Session, *, rate: float | None, dry_run: bool) -> None:
        self._session = session
        self._seconds = 1.0 / rate if rate else 0.0
        self._dry_run = dry_run
        self._next_at = 0.0
        self._routes: dict[str, PublishRoute] = {}
        self._brokers: dict[str, set[str]] = {}
        self._indexing: set[str] = set()

    async def resend(self, letter: DeadLetter, lock: ResendLock) -> Resent:
        """Resend a dead letter, unless its copy exists already.

        Raises:
            ClientError: The outcome is unknown, or a repeated call could not find the copy.
        """
        try:
            queue = await self._queue(letter)
            properties = _property_text(letter)
        except (RouteNotFound, MessageRefused) as error:
            return Resent(letter, Outcome.REFUSED, reason=str(error))
        found = await self._look(letter, queue, lock)
        if found is None and await self._pace():
            found = await self._look(letter, queue, lock)  # others may have resent it
        if found is not None:
            return Resent(letter, Outcome.ALREADY_SENT, found)
        if self._dry_run:
            return Resent(letter, Outcome.WOULD_SEND)
        lock.in_doubt = True
        try:
            offset_id = await self._send(letter, queue, properties)
        except Fault as error:  # the broker answered: the copy is not stored
            lock.in_doubt = False
            return Resent(letter, Outcome.REFUSED, reason=error.remark or str(error))
        lock.in_doubt = False
        await self._check_index(letter, queue)
        return Resent(letter, Outcome.SENT, offset_id)

    async def _queue(self, letter: DeadLetter) -> MessageQueue:
        topic = letter.topic
        if topic is None:
            raise MessageRefused("it does not name the topic to which it was sent")
        if topic in NO_SEND_TOPICS or topic_problem(topic):
            raise MessageRefused(f"users may not send to the topic {topic!r}")
        route = self._routes.get(topic) or await self._learn(topic)
        home = letter.message.queue.broker_name
        key = letter.message.sharding_key
        if key:
            here = [each for each in route.queues if each.broker_name == home]
            return select_by_hash(here or route.queues, key)
        return route.next_of(lambda broker: broker == home) or route.next()

    async def _learn(self, topic: str) -> PublishRoute:
        # Not like a producer, which would create a topic that was deleted on purpose.
        known = await self._session.routes.fetch(topic)
        queues = publish_queues(topic, known)
        if not queues:
            raise RouteNotFound(f"no broker takes messages of the topic {topic}")
        self._brokers[topic] = {each.broker_name for each in known.broker_datas if each.master}
        route = self._routes[topic] = PublishRoute(queues)
        return route

    async def _pace(self) -> bool:
        """Wait until the next message may be sent; return whether there was a wait."""
        if self._dry_run or not self._seconds:
            return False
        loop = asyncio.get_running_loop()
        wait = self._next_at - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        self._next_at = loop.time() + self._seconds
        return wait > 0

    async def _look(self, letter: DeadLetter, queue: MessageQueue, lock: ResendLock) -> str | None:
        """Return the offset id of the copy; search while the lock keeps others from sending it."""
        if not self._dry_run:
            await lock.renew()
        # Include brokers that accept no messages now: they may have done so earlier.
        brokers = {letter.message.queue.broker_name, *self._brokers[queue.topic]}
        return await self._look_up(letter, queue.topic, brokers)

    async def _look_up(self, letter: DeadLetter, topic: str, brokers: set[str]) -> str | None:
        """Return the offset id of the copy on any broker of its topic; None if there is none."""
        header = QueryMessage(
            topic=topic,
            key=letter.resent_id,
            max_num=32,
            begin_timestamp=0,
            end_timestamp=_ANY_TIME,
            unique_key_query="true",
        )
        for broker in sorted(brokers):
            response = await self._session.call(
                self._session.routes.master(broker),
                RequestCode.QUERY_MESSAGE,
                header,
                timeout=_LOOK_UP_SECONDS,
                accept=_NOT_FOUND,
            )
            for record in decode_records(response.body):
                if record.properties.get(names.UNIQUE_KEY) == letter.resent_id:
                    return record.message_id
        return None

    async def _send(self, letter: DeadLetter, queue: MessageQueue, properties: str) -> str:
        record = letter.message.record
        response = await self._session.call(
            self._session.routes.master(queue.broker_name),
            RequestCode.SEND_MESSAGE_V2,
            SendMessageV2(
                producer_group=PRODUCER_GROUP,
                topic=queue.topic,
                queue_id=queue.queue_id,
                sys_flag=record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
                born_timestamp=time.time_ns() // 1_000_000,
                flag=record.flag,
                properties=properties,
                broker_name=queue.broker_name,
            ),
            body=bytes(record.body),
            accept=_STORED,
        )
        return response.read(SendResponse).msg_id

    async def _check_index(self, letter: DeadLetter, queue: MessageQueue) -> None:
        """Check once per broker that a repeated call would find the copy."""
        if queue.broker_name in self._indexing:
            return
        deadline = asyncio.get_running_loop().time() + _INDEXED_SECONDS
        while await self._look_up(letter, queue.topic, {queue.broker_name}) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise ClientError(
                    f"{letter.id} was sent again, but {queue.broker_name} does not index messages "
                    "(messageIndexEnable), so a second copy could not be prevented; stopped here"
                )
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._indexing.add(queue.broker_name)


def _property_text(letter: DeadLetter) -> str:
    try:
        return encode_properties(copy_properties(letter)).decode()
    except LocalProtocolError as error:
        raise MessageRefused(f"its properties cannot be sent again: {error}") from error
