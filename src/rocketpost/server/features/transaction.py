"""Transactions: their requests, the checks with producers, the progress of both queues.

``broker.transaction.service`` and ``broker.transaction.checks`` decide. One task stores and sends
what they ask for. It sleeps until the next half or the next op message is due, or until something
happens: a half is stored, a producer connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from rocketpost.broker.delivery import Wait
from rocketpost.broker.transaction.checks import CheckService, Question, Work
from rocketpost.broker.transaction.service import Ending, Rules, TransactionService
from rocketpost.broker.transaction.table import Fate
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, ServiceNotAvailable
from rocketpost.codec.headers.transaction import CheckTransaction, EndTransaction, ResumeCheck
from rocketpost.codec.record import encode_record, parse_message_id
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model.names import HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.sysflag import TRANSACTION_NONE
from rocketpost.server.context import LeaderContext
from rocketpost.server.due_loop import DueLoop, Next
from rocketpost.server.feature import Feature
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.metrics.transaction import transaction_families
from rocketpost.server.routes.access import PUB, UPDATE, of_message, of_message_id
from rocketpost.server.routes.dispatch import answer, refusal
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, plain, waiting
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended
from rocketpost.transport.connection import Connection
from rocketpost.transport.unique_id import unique_id

logger = logging.getLogger(__name__)

_LOOK_MS: Final = 5000
_SETTLE_MS: Final = 500
_SETTLED_AT_ONCE: Final = 64
_HOUR_MS: Final = 3_600_000


def transaction_rules(broker: BrokerConfig, store: StoreConfig) -> Rules:
    """Return the settings of transactions."""
    return Rules(
        timeout_ms=broker.transaction_timeout_ms,
        check_max=broker.transaction_check_max,
        check_interval_ms=broker.transaction_check_interval_ms,
        op_chars_max=broker.transaction_op_chars_max,
        op_interval_ms=broker.transaction_op_interval_ms,
        reserved_ms=store.reserved_hours * _HOUR_MS,
    )


class TransactionFeature(Feature):
    """Serves, checks and ends transactions. Owned by the loop."""

    def __init__(self, context: LeaderContext) -> None:
        store, clock = context.store, context.clock
        self._kind = context.halves
        self._store = store
        self._membership = context.membership
        self._topics = context.tables.topics
        self._clock = clock
        self._broker_name = context.identity.name
        self._put = context.writer.put
        self._forget_key = context.dedup.keys.forget
        self._loop = DueLoop(self._step, failure="transactions wait")
        self._service = TransactionService(
            store=store,
            topics=context.tables.topics,
            offsets=context.tables.offsets,
            clock=clock,
            store_host=context.store_host,
            new_unique_id=unique_id,
        )
        self._checks = CheckService(
            transactions=self._service,
            record_at=store.record_at,
            clock=clock,
            store_host=context.store_host,
            has_producer=lambda group: self._producer(group) is not None,
        )
        self._service.rules = transaction_rules(context.broker_config, context.store_config)

    async def open(self) -> None:
        """Read the pending transactions from the log."""
        self._service.recover()
        self._kind.pending_count = self._service.table.__len__
        self._membership.on_producer = self._note_producer

    def routes(self) -> Sequence[Route]:
        """Return the routes of commits and rollbacks, and of renewed checks."""
        return [
            plain(
                RequestCode.END_TRANSACTION,
                EndTransaction,
                of_message(PUB, field="commit_log_offset"),
                self.end,
            ),
            waiting(
                RequestCode.RESUME_CHECK_HALF_MESSAGE,
                ResumeCheck,
                of_message_id(UPDATE),
                self.resume,
                PoolKind.MESSAGES,
            ),
        ]

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the times and number of checks, and whether transactions are rejected."""
        self._kind.is_rejecting = broker.reject_transactions
        self._service.rules = transaction_rules(broker, store)
        self._loop.wake()

    # Requests.

    def end(self, connection: Connection, command: Command, header: EndTransaction) -> Reply | None:
        """Commit or roll back; answer once that is stored, or at once if the state is unknown."""
        if header.commit_or_rollback == TRANSACTION_NONE:
            self._service.note_unknown(header)
            return Reply(remark="noted; the broker will ask again")
        ending = self._service.end(header)
        if ending is None:
            return Reply(remark="the transaction has already ended this way")
        try:
            stored = self._put(ending.drafts)
        except StoreError as error:
            self._service.note_stored(ending, [])
            raise ServiceNotAvailable(str(error)) from error

        def reply(future: asyncio.Future[list[Appended]]) -> None:
            answer(connection, command, self._reply_to_end(connection, command, ending, future))

        stored.add_done_callback(reply)
        return None

    async def resume(self, connection: Connection, command: Command, header: ResumeCheck) -> Reply:
        """Store a discarded transaction as a new half, so that it is checked again."""
        try:
            _, position = parse_message_id(header.msg_id)
        except RemoteProtocolError as error:
            raise InvalidParameter(f"msgId: {error}") from None
        await self._put([self._service.resume(position)])
        return Reply()

    # In the background.

    async def run(self) -> None:
        """Check and discard transactions, and store op messages, until cancelled."""
        try:
            await self._settle()
            await self._loop.run()
        finally:
            work = self._checks.flush()
            if work is not None:
                # Stored with the last sends; if not, the next start recovers it.
                with contextlib.suppress(StoreError):
                    self._put(work.drafts)

    async def _settle(self) -> None:
        try:
            while self._service.look_up_commits(_SETTLED_AT_ONCE):  # noqa: ASYNC110 - lets requests in
                await asyncio.sleep(0)
        except Exception:
            # The others are looked up when they end or are due.
            logger.exception("pending transactions were not all looked up")

    async def _step(self) -> int | Next:
        self._service.advance_progress(self._store.durable_position)
        step = self._checks.next()
        if not isinstance(step, Wait):
            await self._do(step)
            return Next.AT_ONCE
        if not self._service.table.is_settled:
            return _SETTLE_MS if step.ms is None else min(step.ms, _SETTLE_MS)
        if step.ms is None and not len(self._service.table):
            return Next.WHEN_WOKEN
        return _LOOK_MS if step.ms is None else step.ms

    def topic_listeners(self) -> Mapping[str, ArrivalListener]:
        """Follow new halves and op messages."""
        return {HALF_TOPIC: self._note_arrivals, OP_HALF_TOPIC: self._note_arrivals}

    def _note_arrivals(self, arrivals: list[Arrival]) -> None:
        if self._service.note_arrivals(arrivals):
            self._loop.wake()

    async def move_messages_before(self, position: int) -> None:
        """Move pending halves out of segments that are about to be deleted."""
        while (work := self._checks.move_halves_before(position)) is not None:
            await self._do(work)
        if self._checks.is_needed_before(position):
            raise StoreError("transactions before that position are being ended")

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of pending and ended transactions."""
        return transaction_families(
            self._service.table,
            self._service.tally,
            topics=self._topics,
            questions=self._checks.questions,
        )

    def runtime_values(self) -> dict[str, str]:
        """Return the number and age of pending transactions, and the counts of ended ones."""
        table, tally = self._service.table, self._service.tally
        oldest_ms = min((half.since_ms for half in table), default=0)
        age_ms = self._clock.now_ms() - oldest_ms if oldest_ms else 0
        waiting = sum(self._checks.waiting.values())
        return {
            "transactionsPending": str(len(table)),
            "transactionsOldestMs": str(age_ms),
            "transactionsWithoutProducer": str(waiting),
            "transactionsCommitted": str(tally.total(Fate.COMMIT)),
            "transactionsRolledBack": str(tally.total(Fate.ROLLBACK)),
            "transactionsDiscarded": str(tally.total(Fate.DISCARD)),
            "transactionChecks": str(self._checks.questions),
        }

    def close(self) -> None:
        """Stop following the connected producers, which stay for the next term."""
        self._membership.on_producer = lambda group: None

    async def save(self) -> None:
        """Record the progress of both queues; all appended messages are on disk."""
        self._service.advance_progress(self._store.durable_position)

    # Inside.

    def _reply_to_end(
        self,
        connection: Connection,
        command: Command,
        ending: Ending,
        future: asyncio.Future[list[Appended]],
    ) -> Reply:
        error = StoreError("the broker is stopping") if future.cancelled() else future.exception()
        if isinstance(error, Exception):
            self._service.note_stored(ending, [])
            return refusal(connection, command, error)
        if self._service.note_stored(ending, future.result()) and ending.fate is Fate.ROLLBACK:
            self._forget_key((ending.topic, ending.identity.unique_key))
        self._loop.wake()
        return Reply()

    async def _do(self, work: Work) -> None:
        stored: list[Appended] = []
        try:
            stored = await self._put(work.drafts)
        finally:
            questions = self._checks.note_stored(work, stored)
        for question in questions:
            self._ask(question)

    def _ask(self, question: Question) -> None:
        connection = self._producer(question.group)
        if connection is None:
            return  # it left; the next check goes to another producer
        header = CheckTransaction(
            tran_state_table_offset=question.offset,
            commit_log_offset=question.position,
            msg_id=question.unique_key,
            transaction_id=question.unique_key,
            offset_msg_id=question.record.message_id,
            topic=question.record.topic,
            broker_name=self._broker_name,
        )
        connection.send_oneway(
            RequestCode.CHECK_TRANSACTION_STATE,
            fields=to_fields(header),
            body=encode_record(question.record),
        )

    def _producer(self, group: str) -> Connection | None:
        """Return the next connected member of a producer group that can take a request."""
        for _ in range(len(self._membership.producers.get(group, ()))):
            client = self._membership.next_producer(group)
            connection = cast(Connection, client.connection) if client is not None else None
            if connection is not None and connection.is_open and connection.is_writable:
                return connection
        return None

    def _note_producer(self, group: str) -> None:
        if self._checks.note_producer(group):
            self._loop.wake()
