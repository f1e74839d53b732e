"""Bugs of one message kind each, to be planted in a broker by ``odd_broker``."""

from __future__ import annotations

import itertools
from typing import Any

from rocketpost.broker.dedup.producers import ProducerTable
from rocketpost.broker.pop.receipts import ReceiptService
from rocketpost.broker.pull.reader import QueueReader
from rocketpost.broker.transaction.service import TransactionService
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.sysflag import TRANSACTION_COMMIT
from rocketpost.server.handlers.retry import RetryHandlers
from rocketpost.server.routes.route import Reply
from rocketpost.store import message_store
from rocketpost.store.apply import schedule_code
from rocketpost.testing.workloads import OrderedWorkload

EARLY_MS = 300
SKIP_EVERY = 50


def pop_acks_ignored() -> None:
    """Confirm acknowledgements of popped messages without storing them."""
    ReceiptService.ack = lambda self, key, offsets: None  # type: ignore[method-assign]


def send_backs_dropped() -> None:
    """Confirm that a message was taken back without storing it."""

    async def send_back(self: Any, connection: Any, command: Any, header: Any) -> Reply:
        return Reply()

    RetryHandlers.send_back = send_back  # type: ignore[method-assign]


def delays_cut_short() -> None:
    """Deliver messages of a delay level before they are due."""

    def too_early(*arguments: Any) -> int:
        return schedule_code(*arguments) - EARLY_MS

    message_store.schedule_code = too_early


def rollbacks_delivered() -> None:
    """Deliver messages whose transaction was rolled back."""
    true_end = TransactionService.end

    def end(self: Any, header: Any) -> Any:
        header.commit_or_rollback = TRANSACTION_COMMIT
        return true_end(self, header)

    TransactionService.end = end  # type: ignore[method-assign]


def duplicates_stored() -> None:
    """Store every repetition of an idempotent producer's send."""
    ProducerTable.is_stored = lambda self, stamp, after=None: False  # type: ignore[method-assign]


def pulls_skip() -> None:
    """Leave out messages of the ordered topic now and then."""
    true_read = QueueReader._read
    counter = itertools.count(1)

    def read(self: Any, name: tuple[str, int], *arguments: Any) -> Any:
        pulled = true_read(self, name, *arguments)
        found = pulled.code == ResponseCode.SUCCESS and name[0] == OrderedWorkload.topic
        if found and next(counter) % SKIP_EVERY == 0:
            return pulled._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY, views=[], size=0)
        return pulled

    QueueReader._read = read  # type: ignore[method-assign]
