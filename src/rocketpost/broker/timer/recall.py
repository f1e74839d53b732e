"""Recalling a timed message before it is due.

The recall is itself a message of the timer topic, due in the slot of the message that it recalls.
It takes effect when it is accepted: the message is not delivered while the recall is being stored,
nor after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rocketpost.broker.delivery import Records
from rocketpost.broker.timer.admission import TimerRules, recall_key
from rocketpost.codec.faults import IllegalOperation
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.recall_handle import decode_recall_handle
from rocketpost.codec.record import host_bits
from rocketpost.errors import RemoteProtocolError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.draft import Draft

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_FOUND_MAX: Final = 64
_TIME_MAX: Final = 2**63 - 1


class Recall(NamedTuple):
    """A recall to be stored."""

    key: str
    message_id: str
    draft: Draft


class RecallService:
    """Decides whether a message can be recalled. Owned by the event loop; waits for nothing.

    Args:
        is_indexed: Whether messages can be found by key.
    """

    def __init__(
        self,
        *,
        store: Records,
        clock: Clock,
        rules: Callable[[], TimerRules],
        broker_name: str,
        store_host: bytes,
        precision_ms: int,
        is_indexed: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._broker_name = broker_name
        self._store_host = store_host
        self._precision_ms = precision_ms
        self._is_indexed = is_indexed

    def recall(self, topic: str, handle_text: str, *, born_host: bytes) -> Recall:
        """Return the recall to store so that a message is not delivered.

        Raises:
            IllegalOperation: It cannot be recalled: the handle is not of this topic and broker,
                or no such message waits, or it is already due.
        """
        try:
            handle = decode_recall_handle(handle_text)
        except RemoteProtocolError as error:
            raise IllegalOperation(str(error)) from None
        if handle.topic != topic:
            raise IllegalOperation(f"the recall handle belongs to the topic {handle.topic}")
        if handle.broker_name != self._broker_name:
            raise IllegalOperation(f"the recall handle belongs to the broker {handle.broker_name}")
        now_ms = self._clock.now_ms()
        if handle.due_ms <= now_ms:
            raise IllegalOperation(f"too late: the message was due {now_ms - handle.due_ms} ms ago")
        if handle.due_ms - now_ms > self._rules().delay_ms_max:
            raise IllegalOperation(
                "the time in the recall handle is further ahead than timerMaxDelaySec"
            )
        if self._is_indexed:
            self._check_waits(topic, handle.message_id)
        return Recall(
            recall_key(topic, handle.message_id),
            handle.message_id,
            self._draft(topic, handle.message_id, handle.due_ms, now_ms, born_host),
        )

    def _check_waits(self, topic: str, message_id: str) -> None:
        if not self._exists(TIMER_TOPIC, topic, message_id):
            raise IllegalOperation(f"no message {message_id} of the topic {topic} is waiting")
        if self._exists(topic, topic, message_id):  # the clock was ahead when it was delivered
            raise IllegalOperation("too late: the message has been delivered")

    def _exists(self, where: str, topic: str, message_id: str) -> bool:
        """Tell whether a timed message is in the timer topic, or in its destination."""
        positions = self._store.find(
            where, message_id, count_max=_FOUND_MAX, begin_ms=0, end_ms=_TIME_MAX
        )
        for position in positions:
            record = self._store.record_at(position)
            if record is None or record.topic != where:
                continue
            properties = record.properties
            if (
                properties.get(names.REAL_TOPIC) == topic
                and properties.get(names.UNIQUE_KEY) == message_id
                and names.TIMER_RECALLS not in properties
            ):
                return True
        return False

    def _draft(
        self, topic: str, message_id: str, due_ms: int, now_ms: int, born_host: bytes
    ) -> Draft:
        slot_ms = (due_ms - 1) // self._precision_ms * self._precision_ms
        properties = {
            names.TAGS: _TAG,
            names.UNIQUE_KEY: message_id,
            names.TIMER_RECALLS: recall_key(topic, message_id),
            names.TIMER_DELIVER_MS: str(due_ms),
            names.TIMER_OUT_MS: str(slot_ms),
            names.REAL_TOPIC: topic,
            names.REAL_QUEUE_ID: "0",
        }
        return Draft(
            TIMER_TOPIC,
            0,
            0,
            host_bits(0, born_host, self._store_host),
            now_ms,
            born_host,
            self._store_host,
            0,
            0,
            _BODY,
            encode_properties(properties),
            string_hash(_TAG),
            (message_id,),
        )
