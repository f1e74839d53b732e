"""Pull requests for the messages of a queue, and their results."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpost.client.compression import decompress
from rocketpost.client.consumer.replica_choice import Chosen, ReplicaChoice
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Session
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.message import PullResponse
from rocketpost.codec.record import Record, cut_records
from rocketpost.errors import (
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
    SystemBusy,
)
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue
from rocketpost.model.sysflag import (
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)


class PullStatus(enum.Enum):
    """Outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    """There are messages, unless the client's filter removed all of them."""
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    """The end of the queue is reached."""
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    """Nothing matched so far; continue from ``next_offset``."""
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED
    """The offset is outside the queue; ``next_offset`` is the nearest one inside."""


_STATUS: Final = {int(status.value): status for status in PullStatus}
_ACCEPTED: Final = frozenset(_STATUS)
_BATCH: Final = INNER_BATCH | NEED_UNWRAP
_LOOK_SECONDS: Final = 2.0
"""Least time between two looks for a suggested replica that is in no route."""
_NO_MASTER_SECONDS: Final = 0.5
"""Pause after a slave has suggested a master that cannot be reached."""

T = TypeVar("T")
_Answer = tuple["PullStatus", PullResponse, Command]


class Replica(enum.Enum):
    """The server of a broker to pull from."""

    SUGGESTED = "suggested"
    """The one that the last answer suggested, the master at first; any other if it is gone."""
    MASTER = "master"
    SLAVE = "slave"
    """Any slave; the master if there is none."""


class PullResult(NamedTuple):
    """The messages found, and the next offset."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


class RawPull(NamedTuple):
    """The result of a pull with consecutive records as stored."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes


class PullQuery(NamedTuple):
    """The parameters of one pull."""

    queue: MessageQueue
    offset: int
    subscription: Subscription
    count_max: int = 32
    bytes_max: int = 2**31 - 1
    hold_ms: int = 0
    """Maximum wait of the broker for a message; 0 for none."""
    commit_offset: int | None = None
    """The group's offset, to be stored with the pull."""
    tell_subscription: bool = True
    """Whether the pull carries the expression, in addition to heartbeats."""
    replica: Replica = Replica.SUGGESTED
    """The server to pull from."""


class Fetcher:
    """Pulls for one group. Belongs to the event loop."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._choice = ReplicaChoice(
            session.routes,
            is_connected=lambda address: session.connector.peek(address) is not None,
            clock=time.monotonic,
        )
        self._look_again = 0.0

    async def pull(self, wish: PullQuery, *, timeout: float) -> PullResult:
        """Pull once.

        Raises:
            Fault: The broker refuses.
            RequestTimeout: No answer in time.
            ConnectionLost: The broker cannot be reached.
            RouteNotFound: The broker is unknown.
            RemoteProtocolError: The answer cannot be read.
        """
        status, head, response = await self._ask(wish, timeout)
        if status is not PullStatus.FOUND:
            return PullResult(status, head.next_begin_offset, head.min_offset, head.max_offset, [])
        return _found(wish, head, response)

    async def pull_raw(self, wish: PullQuery, *, timeout: float) -> RawPull:
        """Pull once, for a caller that decodes many records together.

        Tags are compared by their hashes only. Raises the errors of :meth:`pull`, except for
        unreadable records.
        """
        status, head, response = await self._ask(wish, timeout)
        data = response.body if status is PullStatus.FOUND else b""
        return RawPull(status, head.next_begin_offset, head.min_offset, head.max_offset, data)

    async def _ask(self, wish: PullQuery, timeout: float) -> _Answer:
        if wish.replica is not Replica.SUGGESTED:
            address, is_slave = await self._find(wish.queue, lambda: self._address(wish))
            return await self._ask_at(address, is_slave, wish, timeout)
        chosen, answer = await self._ask_any(wish, timeout)
        status, head, _ = answer
        is_sent_back = (
            chosen.is_slave
            and status is PullStatus.NO_MATCHED_MSG
            and head.next_begin_offset == wish.offset
        )
        return await self._go_back(chosen, wish, timeout, answer) if is_sent_back else answer

    async def _ask_any(self, wish: PullQuery, timeout: float) -> tuple[Chosen, _Answer]:
        """Ask the suggested replica, or else another one; return the one that has answered."""
        chosen = await self._find(wish.queue, lambda: self._choice.choose(wish.queue))
        tried: list[str] = []
        errors: list[RocketpostError] = []
        while True:
            try:
                return chosen, await self._ask_chosen(chosen, wish, timeout)
            except (ConnectionLost, SystemBusy) as error:
                if isinstance(error, SystemBusy) and not chosen.is_slave:
                    raise
                tried.append(chosen.address)
                errors.append(error)
                other = await self._choose_other(wish.queue, tried)
                if other is None:
                    raise errors[0] from None
                chosen = other

    async def _go_back(
        self, slave: Chosen, wish: PullQuery, timeout: float, answer: _Answer
    ) -> _Answer:
        """Ask the master instead of the slave that suggested it.

        Raises:
            ConnectionLost: The master cannot be reached; a pull that may wait does so for a moment
                and returns the answer of the slave.
        """
        master = self._choice.choose(wish.queue)
        try:
            if master.address == slave.address:
                raise ConnectionLost(
                    f"the slave at {slave.address} has no message at offset {wish.offset} of "
                    f"{wish.queue}, and its master cannot be reached"
                )
            return await self._ask_chosen(master, wish, timeout)
        except ConnectionLost:
            if not wish.hold_ms:
                raise
        await asyncio.sleep(_NO_MASTER_SECONDS)
        return answer

    async def _ask_chosen(self, chosen: Chosen, wish: PullQuery, timeout: float) -> _Answer:
        """Ask a replica, and follow its suggestion later, or remember that it failed."""
        try:
            answer = await self._ask_at(chosen.address, chosen.is_slave, wish, timeout)
        except ConnectionLost:
            self._choice.report_failure(chosen.address, is_useless=False)
            raise
        except RequestTimeout:
            # There is no time left for another replica; the next pull asks one.
            self._choice.report_failure(chosen.address, is_useless=True)
            raise
        except SystemBusy:
            if chosen.is_slave:
                self._choice.report_failure(chosen.address, is_useless=True)
            raise
        self._choice.report_success(chosen.address)
        self._choice.suggest(wish.queue, answer[1].suggest_which_broker_id)
        if not self._choice.is_listed(wish.queue):
            self._look_for_suggested(wish.queue)
        return answer

    async def _ask_at(
        self, address: str, is_slave: bool, wish: PullQuery, timeout: float
    ) -> _Answer:
        response = await self._session.call(
            address,
            RequestCode.PULL_MESSAGE,
            self._fields(wish, is_slave=is_slave),
            timeout=timeout,
            accept=_ACCEPTED,
        )
        return _STATUS[response.code], response.read(PullResponse), response

    async def _find(self, queue: MessageQueue, find: Callable[[], T]) -> T:
        """Return what ``find`` finds in the routes; fetch the route if it finds nothing."""
        try:
            return find()
        except RouteNotFound:
            await self._session.routes.fetch(queue.topic)
            return find()

    def _address(self, wish: PullQuery) -> tuple[str, bool]:
        routes, name = self._session.routes, wish.queue.broker_name
        if wish.replica is Replica.MASTER:
            return routes.master(name), False
        return routes.slave(name)

    async def _choose_other(self, queue: MessageQueue, tried: list[str]) -> Chosen | None:
        """Return a replica in place of those that cannot be reached or serve no pulls."""
        await self._session.routes.refresh(queue.topic)
        try:
            return self._choice.choose_other(queue, tried)
        except RouteNotFound:
            return None

    def _look_for_suggested(self, queue: MessageQueue) -> None:
        """Refresh the route of a queue whose suggested replica is not known, now and then."""
        now = time.monotonic()
        if now < self._look_again:
            return
        self._look_again = now + _LOOK_SECONDS
        session = self._session
        session.tasks.start(session.routes.refresh(queue.topic), name="refresh route")

    def _fields(self, wish: PullQuery, *, is_slave: bool) -> dict[str, str]:
        """Return the header fields of :class:`PullMessage`, at a third of its cost."""
        flag = PULL_SUSPEND if wish.hold_ms else 0
        if wish.commit_offset is not None and not is_slave:
            flag |= PULL_COMMIT_OFFSET
        if wish.tell_subscription:
            flag |= PULL_SUBSCRIPTION
        queue, subscription = wish.queue, wish.subscription
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(wish.offset),
            "maxMsgNums": str(wish.count_max),
            "sysFlag": str(flag),
            "commitOffset": str(wish.commit_offset or 0),
            "suspendTimeoutMillis": str(wish.hold_ms),
        }
        if wish.tell_subscription:
            fields["subscription"] = subscription.sub_string
        fields["subVersion"] = str(subscription.sub_version)
        if subscription.expression_type is not None:
            fields["expressionType"] = subscription.expression_type
        fields["maxMsgBytes"] = str(wish.bytes_max)
        return fields


def _found(wish: PullQuery, head: PullResponse, response: Command) -> PullResult:
    data = response.body
    records, read = cut_records(data)
    next_offset = head.next_begin_offset
    if read < len(data):
        # Java skips what it cannot read, and so loses it silently.
        if not records:
            raise RemoteProtocolError(
                f"the message at offset {wish.offset} of {wish.queue} cannot be read"
            )
        next_offset = unwrap_batch(records[-1].decode(), first=0)[-1].queue_offset + 1
    queue, begin, end = wish.queue, head.min_offset, head.max_offset
    if [1 for record in records if record.sys_flag & _BATCH == _BATCH]:
        messages = [
            ReceivedMessage(record, queue, end, begin)
            for stored in records
            for record in unwrap_batch(stored.decode(), first=wish.offset)
        ]
    else:
        messages = [ReceivedMessage(record, queue, end, begin) for record in records]
    wanted = wish.subscription.tags_set
    if wanted and wish.subscription.is_tag:
        # Brokers compare hashes of tags, and two tags may share one.
        messages = [message for message in messages if message.tags in wanted]
    return PullResult(PullStatus.FOUND, next_offset, head.min_offset, head.max_offset, messages)


def unwrap_batch(record: Record, *, first: int) -> list[Record]:
    """Return the messages of a record: one, or those of a batch that is stored as one record.

    Topics with ``queue.type=BatchCQ`` store batches so; the offsets of their messages count from
    the record's queue offset. Those before ``first`` are omitted.

    Raises:
        RemoteProtocolError: It is marked as a batch but is not one.
    """
    if record.sys_flag & _BATCH != _BATCH:
        return [record]
    return [
        msgspec.structs.replace(
            record,
            body=bytes(item.body),
            flag=item.flag,
            properties_bytes=item.properties,
            queue_offset=record.queue_offset + at,
            sys_flag=record.sys_flag & ~(_BATCH | COMPRESSED | COMPRESSION_MASK),
        )
        for at, item in enumerate(decode_batch(decompress(bytes(record.body), record.sys_flag)))
        if record.queue_offset + at >= first
    ]
