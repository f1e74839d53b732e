"""Transactional messages, delivered if and only if a local transaction commits.

The message is stored as a *half message* that no consumer sees; then the local transaction runs;
then its outcome commits or discards the half message. If the producer dies in between, the broker
asks any producer of its group about the outcome; the checker answers.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from rocketpost.client.checks import check_function, check_number, is_coroutine_function
from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import (
    Message,
    ReceivedMessage,
    SendResult,
    SendStatus,
    check_topic,
)
from rocketpost.client.producer.producer import Producer
from rocketpost.client.producer.queue_choice import QueueSelector, check_send
from rocketpost.client.session import Answer, Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.transaction import CheckTransaction, EndTransaction
from rocketpost.codec.record import decode_record, parse_message_id
from rocketpost.errors import (
    ConfigError,
    CorruptRecord,
    MessageRefused,
    RocketpostError,
)
from rocketpost.model import properties as names
from rocketpost.model.route import MessageQueue
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

CHECKS_HELD_MAX: Final = 2000
"""Maximum of waiting checks; further ones are dropped, and the broker repeats them."""
_REMEMBERED_MAX: Final = 10_000
_IMMUNITY_MAX: Final = 7 * 24 * 3600


class TransactionState(enum.Enum):
    """Outcome of a local transaction."""

    COMMIT = TRANSACTION_COMMIT
    """Deliver the message."""
    ROLLBACK = TRANSACTION_ROLLBACK
    """Discard the message."""
    UNKNOWN = TRANSACTION_NONE
    """The outcome is not known yet; the broker asks again."""


_JAVA_NAMES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}

Outcome = TransactionState | None
LocalTransaction = Callable[[Message, str], Outcome | Awaitable[Outcome]]
"""Runs the local transaction for a message and a transaction id; returns its outcome."""
Checker = Callable[[ReceivedMessage], Outcome | Awaitable[Outcome]]
"""Looks up the outcome of the transaction whose id is the ``message_id`` of this message."""


class TransactionResult(NamedTuple):
    """Outcome of a transaction and its message."""

    sent: SendResult
    state: TransactionState
    error: BaseException | None = None
    """The exception of the local transaction; its state is then UNKNOWN."""
    confirmed: bool = False
    """Whether the broker confirmed that it has stored the outcome; otherwise it will ask."""


class Transaction:
    """A half message whose local transaction is running. If it never ends, the broker asks.

    Attributes:
        id: The id that the local transaction stores and the checker looks up.
        message: The message to deliver on commit.
        sent: The queue and offset of the half message.
    """

    __slots__ = ("__weakref__", "_end", "id", "message", "sent")

    def __init__(
        self,
        message: Message,
        sent: SendResult,
        end: Callable[[Transaction, TransactionState, str | None], Awaitable[None]],
    ) -> None:
        self.id = sent.message_id
        self.message = message
        self.sent = sent
        self._end = end

    async def commit(self) -> None:
        """Commit: deliver the message.

        Raises:
            Fault: The broker refuses, for example because a check rolled it back meanwhile.
            ClientError: The broker did not answer; it will ask about the transaction.
        """
        await self._end(self, TransactionState.COMMIT, None)

    async def rollback(self) -> None:
        """Roll back: discard the message.

        Raises:
            Fault: The broker refuses, for example because a check committed it meanwhile.
            ClientError: The broker did not answer; it will ask about the transaction.
        """
        await self._end(self, TransactionState.ROLLBACK, None)


class TransactionProducer(Producer):
    """Sends transactional messages, and answers brokers that ask about them.

    ::

        async with TransactionProducer("orders", checker=look_up, topics=["Orders"]) as producer:
            await producer.send_in_transaction(Message("Orders", b"..."), book)

    Args:
        group: The producer group. Brokers ask any member about the half messages of all, so the
            checkers of all members must see the same database.
        checker: Looks up the outcome of a transaction; a coroutine function, or a plain one, which
            runs in a thread. If it raises or returns None, the outcome is unknown.
        topics: Topics whose brokers may ask from the start. Brokers do not know a producer that has
            sent nothing yet, and one that replaces a crashed producer may have nothing to send.
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        config: The other settings.
        check_concurrency: Number of checks answered at the same time.

    Raises:
        ConfigError: The group's name is illegal.
    """

    def __init__(
        self,
        group: str,
        *,
        checker: Checker,
        topics: Sequence[str] = (),
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
        check_concurrency: int = 4,
        checks_held_max: int = CHECKS_HELD_MAX,
    ) -> None:
        super().__init__(group, name_servers=name_servers, config=config)
        check_number("check_concurrency", check_concurrency, least=1)
        check_number("checks_held_max", checks_held_max, least=1)
        self._checks_held_max = checks_held_max
        check_function("checker", checker, arguments=1)
        if isinstance(topics, str):
            raise ConfigError(f"topics must be a list of topics, not the text {topics!r}")
        for topic in topics:
            check_topic(topic)
        self._checker = checker
        self._topics = tuple(topics)
        self._check_slots = asyncio.Semaphore(check_concurrency)
        self._checks = 0
        self._open: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
        self._brokers: OrderedDict[str, str] = OrderedDict()

    async def start(self) -> None:
        """Find the name servers, and announce this producer to the brokers of its topics.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        await super().start()
        try:
            await self._introduce(self._running()[0])
        except BaseException:
            await self.stop()
            raise

    async def _introduce(self, session: Session) -> None:
        """Announce this producer to the brokers of its topics."""
        session.on(RequestCode.CHECK_TRANSACTION_STATE, self._receive_check, takes=self._is_ours)
        for topic in self._topics:
            try:
                await session.routes.publish(topic)
            except RocketpostError as error:
                logger.warning(
                    "brokers cannot check transactions yet: topic=%s reason=%s", topic, error
                )
        await session.heartbeat_all()

    async def begin(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        immunity_seconds: int | None = None,
    ) -> Transaction:
        """Store a half message and return the transaction, for the caller to end.

        Args:
            message: The message to deliver on commit.
            queue: Its queue.
            selector: Chooses one of the topic's queues.
            timeout: Seconds for all attempts to store it; the configured time if None.
            immunity_seconds: Time without checks; the broker's ``transactionTimeOut`` if None. A
                later end of the transaction is refused, unless the broker asked.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            ClientError: See :meth:`send`; if the half message was stored, the broker will ask
                about it.
            Fault: A broker refused the message.
        """
        check_send(message, queue, selector, timeout)
        if message.is_delayed:
            raise MessageRefused("a message of a transaction cannot be delayed")
        extra = (
            f"{names.TRANSACTION_PREPARED}\x01true\x02{names.PRODUCER_GROUP}\x01{self.group}\x02"
        )
        if immunity_seconds is not None:
            if not 0 < immunity_seconds <= _IMMUNITY_MAX:
                raise MessageRefused(f"an immunity of {immunity_seconds} s is out of range")
            extra += f"{names.TRANSACTION_IMMUNITY}\x01{immunity_seconds}\x02"
        sent = await self._send_with(
            extra, message, queue=queue, selector=selector, timeout=timeout
        )
        transaction = Transaction(message, sent, self._end)
        self._open[transaction.id] = transaction
        self._brokers[transaction.id] = transaction.sent.queue.broker_name
        if len(self._brokers) > _REMEMBERED_MAX:
            self._brokers.popitem(last=False)
        return transaction

    async def send_in_transaction(
        self,
        message: Message,
        execute: LocalTransaction,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        immunity_seconds: int | None = None,
    ) -> TransactionResult:
        """Store a half message, run the local transaction, and commit or roll back both.

        Args:
            message: The message to deliver on commit.
            execute: Runs the local transaction: a coroutine function, or a plain one, which runs in
                a thread. If it raises or returns None, the checker decides later.
            queue: The queue of the message.
            selector: Chooses one of the topic's queues.
            timeout: Seconds for all attempts to store the half message; the configured time if
                None.
            immunity_seconds: Time without checks.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent or run.
            ClientError: See :meth:`send`; nothing was run.
            Fault: A broker refused the message; nothing was run.
        """
        check_function("the local transaction", execute, arguments=2)
        transaction = await self.begin(
            message,
            queue=queue,
            selector=selector,
            timeout=timeout,
            immunity_seconds=immunity_seconds,
        )
        if transaction.sent.status is not SendStatus.SEND_OK:
            state, error = TransactionState.ROLLBACK, None
        else:
            state, error = await _outcome(execute, message, transaction.id)
        return await self.end_quietly(transaction, state, error)

    async def end_quietly(
        self, transaction: Transaction, state: TransactionState, error: BaseException | None
    ) -> TransactionResult:
        """End a transaction; only log failures, since the broker will ask."""
        confirmed = False
        try:
            await self._end(transaction, state, repr(error) if error is not None else None)
            confirmed = state is not TransactionState.UNKNOWN
        except RocketpostError as problem:
            logger.warning(
                "end of a transaction not confirmed: id=%s state=%s reason=%s",
                transaction.id, state.name, problem,
            )  # fmt: skip
        return TransactionResult(transaction.sent, state, error, confirmed)

    # Inside.

    async def _end(
        self, transaction: Transaction, state: TransactionState, remark: str | None
    ) -> None:
        self._open.pop(transaction.id, None)
        session, sent = self._running()[0], transaction.sent
        header = EndTransaction(
            topic=transaction.message.topic,
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=parse_message_id(sent.offset_id)[1],
            commit_or_rollback=state.value,
            msg_id=sent.message_id,
            transaction_id=sent.transaction_id or sent.message_id,
            broker_name=sent.queue.broker_name,
        )
        address = session.routes.master(sent.queue.broker_name)
        if self._tracer is not None and sent.trace_on:
            self._tracer.trace_end(
                transaction.message,
                sent.message_id,
                sent.queue.broker_name,
                transaction_id=header.transaction_id or "",
                state=_JAVA_NAMES[state],
            )
        if state is TransactionState.UNKNOWN:  # brokers do not answer it
            await session.send_oneway(address, RequestCode.END_TRANSACTION, header)
        else:
            await session.call(address, RequestCode.END_TRANSACTION, header)

    def _is_ours(self, command: Command) -> bool:
        try:
            record = decode_record(command.body, verify_crc=False)
        except CorruptRecord:
            return False
        return record.properties.get(names.PRODUCER_GROUP) == self.group

    def _receive_check(self, connection: Connection, command: Command) -> Answer | None:
        """Accept a broker's check; the answer is an END_TRANSACTION, not a response."""
        header = command.read(CheckTransaction)
        try:
            record = decode_record(command.body, verify_crc=False)
        except CorruptRecord as error:
            logger.warning("check without its message: peer=%s %s", connection.peer_text, error)
            return None
        queue = MessageQueue(header.broker_name or "", record.queue_id, record.topic)
        message = ReceivedMessage(record, queue)
        if message.properties.get(names.PRODUCER_GROUP) != self.group:
            logger.warning("check of another group's transaction: %r", message)
        elif self._checks >= self._checks_held_max:
            logger.warning("check dropped, %s are waiting already: %r", self._checks, message)
        else:
            self._checks += 1
            work = self._answer(connection, header, message)
            self._running()[0].tasks.start(work, name=f"check {message.message_id}")
        return None

    async def _answer(
        self, connection: Connection, header: CheckTransaction, message: ReceivedMessage
    ) -> None:
        try:
            async with self._check_slots:
                state, error = await self._look_up(header, message)
        finally:
            self._checks -= 1
        end = EndTransaction(
            topic=message.topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id or message.message_id,
            broker_name=header.broker_name,
        )
        if error is not None:
            logger.warning("checker failed: id=%s", message.message_id, exc_info=error)
        if self._tracer is not None and message.properties.get(names.TRACE_ON) != "false":
            self._tracer.trace_end(
                message,
                message.message_id,
                header.broker_name or "",
                transaction_id=end.transaction_id or "",
                state=_JAVA_NAMES[state],
                from_check=True,
            )
        if connection.is_open:
            connection.send_oneway(RequestCode.END_TRANSACTION, fields=to_fields(end))

    async def _look_up(
        self, header: CheckTransaction, message: ReceivedMessage
    ) -> tuple[TransactionState, BaseException | None]:
        id_ = message.message_id
        if id_ in self._open:
            # It is running here: the checker would look too early.
            return TransactionState.UNKNOWN, None
        broker = self._brokers.get(id_)
        if broker is not None and header.broker_name and broker != header.broker_name:
            # Left over from an attempt that timed out; the transaction uses another half message.
            return TransactionState.ROLLBACK, None
        return await _outcome(self._checker, message)


async def _outcome(
    function: Callable[..., Outcome | Awaitable[Outcome]], *arguments: object
) -> tuple[TransactionState, BaseException | None]:
    """Call a user's function; return its result, or its exception."""
    try:
        if is_coroutine_function(function):
            state = await function(*arguments)  # type: ignore[misc]
        else:
            state = await asyncio.to_thread(function, *arguments)
        return check_state(state), None
    except Exception as error:
        return TransactionState.UNKNOWN, error


def check_state(state: object) -> TransactionState:
    """Return the result of a user's function as a state; None is UNKNOWN.

    Raises:
        TypeError: ``state`` is not a state.
    """
    if state is None:
        return TransactionState.UNKNOWN
    if not isinstance(state, TransactionState):
        raise TypeError(f"a transaction ends as a TransactionState, not as {state!r}")
    return state
