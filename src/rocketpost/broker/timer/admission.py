"""Timed messages: their admission, and the forms that are stored and delivered.

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS waits in ``rmq_sys_wheel_timer``
and names its destination in REAL_TOPIC and REAL_QID. TIMER_OUT_MS is its slot of the wheel.
TIMER_DELIVER_MS, added if the sender gave a delay, is its exact due time.

The delivered message is a copy in the destination with these properties, and two more with the
times at which it entered and left the wheel. The prepared position of a copy, which otherwise only
transactions use, is the position of the original: after a crash it tells the broker what was
already delivered (ADR 0021).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketpost.broker.kinds import TIMER, with_properties
from rocketpost.codec.faults import MessageIllegal, ServerError
from rocketpost.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from rocketpost.codec.recall_handle import RecallHandle
from rocketpost.codec.record import Record
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import RETRY_PREFIX, TIMER_TOPIC
from rocketpost.store.draft import Draft

CONGESTION_OFF: Final = 2**31 - 1
_ADDED_LATER_BYTES: Final = 160
"""Room in the properties for the times and the counter that rolling and delivery add."""
_OF_WAITING: Final = (
    *TIMER,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.TIMER_RECALLS,
)
"""Properties of a message that waits, or has waited, in the wheel."""
_DIGITS_MAX: Final = 18
_PRECISION_MS_MAX: Final = 60_000
_DAY_LOOK_MS: Final = 60_000


class TimerRules(NamedTuple):
    """Settings of the timer that may change while the broker runs."""

    enabled: bool = True
    delay_ms_max: int = 366 * 86_400_000
    roll_window_ms: int = 172_800_000
    slot_count_max: int = CONGESTION_OFF
    stop_enqueue: bool = False
    stop_dequeue: bool = False


class TimedMessages:
    """The kind of message that has its own due time.

    Args:
        rules: Returns the settings in force.
        random_below: Chooses the messages to refuse while a slot is crowded.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        precision_ms: int,
        rules: Callable[[], TimerRules],
        random_below: Callable[[int], int],
    ) -> None:
        self._clock = clock
        self._precision_ms = precision_ms
        self._rules = rules
        self.count_in: Callable[[int], int] = lambda slot_ms: 0
        """Returns the number of messages in a slot; the owner of the slots sets it."""
        self._random_below = random_below

    def prepare(self, draft: Draft, properties: dict[str, str]) -> Draft | None:
        """Return the message to store if it is due later; None if it is plain or already due.

        Raises:
            MessageIllegal: The time is invalid or too far ahead, or there is no room for more
                properties.
            ServerError: There is no timer, or too many messages are due at that time.
        """
        if names.TIMER_OUT_MS in properties or not any(name in properties for name in TIMER):
            return None
        rules = self._rules()
        if not rules.enabled:
            raise ServerError("this broker accepts no timed messages: timerWheelEnable is false")
        now_ms = self._clock.now_ms()
        due_ms = due_time(properties, now_ms)
        if due_ms <= now_ms:
            if names.TIMER_RECALLS in properties:
                raise MessageIllegal("a message that is already due cannot be recalled")
            return None
        if due_ms - now_ms > rules.delay_ms_max:
            raise MessageIllegal(
                f"the message is due in {(due_ms - now_ms) // 1000} s; "
                f"at most {rules.delay_ms_max // 1000} s (timerMaxDelaySec) are allowed"
            )
        slot_ms = (due_ms - 1) // self._precision_ms * self._precision_ms
        if rules.slot_count_max < CONGESTION_OFF:
            self._check_crowd(self.count_in(slot_ms), rules.slot_count_max)
        properties[names.TIMER_DELIVER_MS] = str(due_ms)
        properties[names.TIMER_OUT_MS] = str(slot_ms)
        properties[names.REAL_TOPIC] = draft.topic
        properties[names.REAL_QUEUE_ID] = str(draft.queue_id)
        waiting = with_properties(draft, properties)
        if len(waiting.properties) > PROPERTIES_BYTES_MAX - _ADDED_LATER_BYTES:
            raise MessageIllegal(
                f"the message properties take {len(waiting.properties)} bytes; a timed message "
                f"may have {PROPERTIES_BYTES_MAX - _ADDED_LATER_BYTES}"
            )
        waiting.topic, waiting.queue_id = TIMER_TOPIC, 0
        return waiting

    def put_off(self, draft: Draft, delay_ms: int) -> Draft:
        """Return a message to be redelivered after a delay; its earlier due time has no effect.

        The delay is at most ``timerMaxDelaySec``.

        Raises:
            MessageIllegal: As :meth:`prepare`.
            ServerError: As :meth:`prepare`.
        """
        properties = decode_properties(draft.properties)
        for name in _OF_WAITING:
            properties.pop(name, None)
        delay_ms = min(delay_ms, self._rules().delay_ms_max)
        properties[names.TIMER_DELIVER_MS] = str(self._clock.now_ms() + delay_ms)
        waiting = self.prepare(draft, properties)
        return draft if waiting is None else waiting

    def _check_crowd(self, count: int, most: int) -> None:
        """Refuse a growing share as a slot fills up to twice its regular number."""
        if count > most and self._random_below(most) < count - most:
            raise ServerError(
                f"{count} messages are already due at that time, more than {most} "
                "(timerCongestNumEachSlot); try again later, or choose another time"
            )


def due_time(properties: dict[str, str], now_ms: int) -> int:
    """Return the due time of a message.

    Raises:
        MessageIllegal: Its properties hold no valid time.
    """
    for name, scale in ((names.TIMER_DELAY_SEC, 1000), (names.TIMER_DELAY_MS, 1)):
        if name in properties:
            return now_ms + _number(name, properties[name]) * scale
    return _number(names.TIMER_DELIVER_MS, properties[names.TIMER_DELIVER_MS])


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
        raise MessageIllegal(
            f"{name}={text[:32]!r} is not a whole number of at most {_DIGITS_MAX} digits"
        )
    return int(text)


def recall_handle(properties: dict[str, str], broker_name: str) -> str | None:
    """Return the handle that recalls a waiting message; None for a retry."""
    topic = properties[names.REAL_TOPIC]
    if topic.startswith(RETRY_PREFIX):
        return None
    due_ms = int(properties[names.TIMER_DELIVER_MS])
    return RecallHandle(topic, broker_name, due_ms, properties[names.UNIQUE_KEY]).encode()


def recall_key(topic: str, message_id: str) -> str:
    """Return the name of a message in TIMER_DEL_UNIQKEY, which recalls it."""
    return f"{topic}+{message_id}"


class Waiting(NamedTuple):
    """The fields of a message of the timer topic that the wheel uses."""

    topic: str
    slot_ms: int
    due_ms: int
    recalls: str | None


def waiting_of(properties: dict[str, str], precision_ms: int) -> Waiting | None:
    """Return the due time and destination of a message of the timer topic; None if missing."""
    topic = properties.get(names.REAL_TOPIC)
    out = properties.get(names.TIMER_OUT_MS, "")
    if not topic or not _is_time(out):
        return None
    slot_ms = int(out) // precision_ms * precision_ms
    exact = properties.get(names.TIMER_DELIVER_MS, "")
    due_ms = int(exact) if _is_time(exact) else 0
    if slot_ms < due_ms <= int(out) + _PRECISION_MS_MAX:
        slot_ms = (due_ms - 1) // precision_ms * precision_ms
    else:
        # Written by a broker that stores only the slot; its end is not too early.
        due_ms = slot_ms + precision_ms
    return Waiting(topic, slot_ms, due_ms, properties.get(names.TIMER_RECALLS))


def day_wait_ms(properties: dict[str, str], precision_ms: int, wall_ms: int) -> int:
    """Return how long a message must still wait for its time of day; 0 if it named a delay.

    The wait is long only if the machine's clock was set back. The clock may be set again, so the
    answer is at most a minute.
    """
    waiting = waiting_of(properties, precision_ms)
    if waiting is None or names.TIMER_DELAY_SEC in properties or names.TIMER_DELAY_MS in properties:
        return 0
    return min(max(0, waiting.due_ms - wall_ms), _DAY_LOOK_MS)


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def copy_draft(
    record: Record,
    properties: dict[str, str],
    *,
    topic: str,
    queue_id: int,
    enqueued_ms: int,
    now_ms: int,
    store_host: bytes,
) -> Draft:
    """Return the copy to store of a message that leaves the wheel."""
    times = {names.TIMER_ENQUEUE_MS: str(enqueued_ms), names.TIMER_DEQUEUE_MS: str(now_ms)}
    if topic == TIMER_TOPIC:
        rolled = properties.get(names.TIMER_ROLL_TIMES, "0")
        times[names.TIMER_ROLL_TIMES] = str(int(rolled) + 1 if _is_time(rolled) else 1)
    encoded = record.properties_bytes
    with contextlib.suppress(LocalProtocolError):
        # Without room it is stored as it is, since it must not block the others for ever.
        if names.TIMER_DEQUEUE_MS in properties:  # it was in the wheel before
            encoded = encode_properties({**properties, **times})
        else:
            end = b"" if encoded.endswith(b"\x02") else b"\x02"
            added = encoded + end + encode_properties(times)
            encoded = added if len(added) <= PROPERTIES_BYTES_MAX else encoded
    return Draft.copy_of(
        record,
        topic=topic,
        queue_id=queue_id,
        store_host=store_host,
        prepared_position=record.position,
        properties=encoded,
    )
