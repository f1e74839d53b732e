"""Kinds of messages that are not plain: the form they are stored in, and their waiting topics.

A send with one of the :data:`SPECIAL` properties is offered to each kind in turn. The first kind
that it belongs to prepares the message to store. A waiting message names its destination in
REAL_TOPIC and REAL_QID.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from rocketpost.broker.delay.service import delayed_draft, level_of
from rocketpost.broker.transaction.log import half_draft
from rocketpost.broker.transaction.table import PENDING_MAX
from rocketpost.codec.faults import MessageIllegal, NoPermission, SystemBusy
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.names import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.store.draft import Draft

TIMER: Final = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
SPECIAL: Final = frozenset({names.TRANSACTION_PREPARED, names.DELAY_LEVEL, *TIMER})
"""Properties of messages that are not plain; none is allowed in a batch."""
WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})
"""Topics in which messages wait; senders do not know their queues."""


class Kind(Protocol):
    """A kind of message that is not plain."""

    def prepare(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return the message to store; None if it is not of this kind.

        Args:
            draft: The message as a plain one would be stored.
            properties: Its decoded properties. A kind that returns a message may change them.

        Raises:
            Fault: The message is of this kind, and is refused.
        """
        ...


class HalfMessages:
    """Half messages of transactions, which wait for their commit."""

    def __init__(self) -> None:
        self.is_rejecting = False
        """Whether the broker refuses transactions."""
        self.pending_count: Callable[[], int] = lambda: 0

    def prepare(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return the half message to store; None if the message is not marked as a half."""
        if not is_half(draft, properties):
            return None
        if self.is_rejecting:
            raise NoPermission("this broker accepts no transactions: rejectTransactionMessage=true")
        if not properties.get(names.PRODUCER_GROUP):
            raise MessageIllegal("a transactional message needs its producer group in PGROUP")
        if delay_level(properties) > 0 or any(name in properties for name in TIMER):
            raise MessageIllegal("a transactional message cannot be delayed")
        if self.pending_count() >= PENDING_MAX:
            raise SystemBusy(f"[OVERLOAD]{PENDING_MAX} transactions are already pending")
        return half_draft(draft, properties)


class DeadLetters:
    """Dead letters: delays and transactions that were asked for them no longer apply."""

    def prepare(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return a dead letter without its delay; None for a message to another topic."""
        if not draft.topic.startswith(DLQ_PREFIX):
            return None
        properties[names.DELAY_LEVEL] = "-1"
        return with_properties(draft, properties)


class DelayLevels:
    """Messages with a delay level.

    Args:
        level_max: The highest level; higher requests are reduced to it.
    """

    def __init__(self, *, level_max: int) -> None:
        self._level_max = level_max

    def prepare(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return the message to store in the queue of its level; None if it has no level."""
        level = delay_level(properties)
        if level == 0:
            return None
        try:
            return delayed_draft(draft, level, level_max=self._level_max)
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None


def delay_level(properties: dict[str, str]) -> int:
    """Return the requested delay level, 0 for none.

    Raises:
        MessageIllegal: The level is not a number.
    """
    level = level_of(properties.get(names.DELAY_LEVEL))
    if level is None:
        raise MessageIllegal("the delay level (the property DELAY) is not a number")
    return level


def is_half(draft: Draft, properties: dict[str, str]) -> bool:
    """Tell whether a message is the half of a transaction; the retry of one is not."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (draft.reconsume_times > 0 and delay_level(properties) > 0)


def real_queue(draft: Draft) -> tuple[str, int]:
    """Return the destination topic and queue of a waiting message."""
    properties = decode_properties(draft.properties)
    return properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID])


def with_properties(draft: Draft, properties: dict[str, str]) -> Draft:
    """Return a message with ``properties`` instead of its own.

    Raises:
        MessageIllegal: They cannot be encoded.
    """
    try:
        encoded = encode_properties(properties)
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
    return msgspec.structs.replace(draft, properties=encoded)
