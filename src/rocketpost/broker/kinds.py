"""Messages that are not plain: what is stored of them instead, and where they wait.

A send whose properties have one of :data:`SPECIAL` is shown to the kinds one after the other; the
first that claims it says what is stored. A message that waits for something names its destination
in REAL_TOPIC and REAL_QID.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from rocketpost.broker.delay.service import level_of, postponed
from rocketpost.broker.transaction.log import halved
from rocketpost.broker.transaction.table import PENDING_MAX
from rocketpost.codec.faults import MessageIllegal, NoPermission, SystemBusy
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.names import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.store.draft import Draft

TIMER: Final = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
SPECIAL: Final = frozenset({names.TRANSACTION_PREPARED, names.DELAY_LEVEL, *TIMER})
"""The properties that make a message more than plain; none may be in a batch."""
WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})
"""Where messages wait; their senders know nothing of these topics' queues."""


class Kind(Protocol):
    """One way of not being plain."""

    def claim(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return what is stored of a message; None if it is not of this kind.

        Args:
            draft: The message as a plain one would be stored.
            properties: Its properties, decoded; they are the callee's to change if it claims.

        Raises:
            Fault: It is of this kind, and refused.
        """
        ...


class HalfMessages:
    """First halves of transactions, which wait until they are committed."""

    def __init__(self) -> None:
        self.is_rejecting = False
        """Whether the broker takes no transactions."""
        self.pending_count: Callable[[], int] = lambda: 0

    def claim(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Claim what is marked as a half."""
        if not is_half(draft, properties):
            return None
        if self.is_rejecting:
            raise NoPermission("this broker takes no transactions: rejectTransactionMessage=true")
        if not properties.get(names.PRODUCER_GROUP):
            raise MessageIllegal("a transactional message needs its producer group in PGROUP")
        if delay_level(properties) > 0 or any(name in properties for name in TIMER):
            raise MessageIllegal("a transactional message cannot be delayed")
        if self.pending_count() >= PENDING_MAX:
            raise SystemBusy(f"[OVERLOAD]{PENDING_MAX} transactions are pending already")
        return halved(draft, properties)


class DeadLetters:
    """Dead letters: whatever was asked for them in life, they wait for nothing."""

    def claim(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Claim what goes to a dead-letter topic."""
        if not draft.topic.startswith(DLQ_PREFIX):
            return None
        properties[names.DELAY_LEVEL] = "-1"
        return with_properties(draft, properties)


class DelayLevels:
    """Messages with a delay level.

    Args:
        level_max: The highest level; what asks for more gets this one.
    """

    def __init__(self, *, level_max: int) -> None:
        self._level_max = level_max

    def claim(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Claim what has a level above 0."""
        level = delay_level(properties)
        if level == 0:
            return None
        try:
            return postponed(draft, level, level_max=self._level_max)
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None


def delay_level(properties: dict[str, str]) -> int:
    """Return the delay level that is asked for, 0 for none.

    Raises:
        MessageIllegal: It is no number.
    """
    level = level_of(properties.get(names.DELAY_LEVEL))
    if level is None:
        raise MessageIllegal("the delay level is no number")
    return level


def is_half(draft: Draft, properties: dict[str, str]) -> bool:
    """Tell whether a message is the first half of a transaction; the retry of one is none."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (draft.reconsume_times > 0 and delay_level(properties) > 0)


def real_queue(draft: Draft) -> tuple[str, int]:
    """Return topic and queue that a waiting message will be delivered to."""
    properties = decode_properties(draft.properties)
    return properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID])


def with_properties(draft: Draft, properties: dict[str, str]) -> Draft:
    """Return a message with other properties.

    Raises:
        MessageIllegal: They cannot be encoded.
    """
    try:
        encoded = encode_properties(properties)
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
    return msgspec.structs.replace(draft, properties=encoded)
