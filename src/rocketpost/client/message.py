"""Messages as users write and read them, and results of sends."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rocketpost.client.compression import decompress
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.properties import (
    NAME_END,
    PROPERTIES_BYTES_MAX,
    VALUE_END,
    decode_properties,
)
from rocketpost.codec.record import CutRecord, Record, message_id, unpack_host
from rocketpost.errors import MessageRefused
from rocketpost.model import properties as names
from rocketpost.model.failure import ConsumeFailure, failure_in
from rocketpost.model.names import NO_SEND_TOPICS, topic_problem
from rocketpost.model.route import MessageQueue

__all__ = ["Message", "MessageQueue", "ReceivedMessage", "SendResult", "SendStatus"]

DELAY_LEVEL_MAX = 18
_FLAG_MAX = 2**31 - 1


class Message:
    """A message to send. Sending does not change it, so it may be sent again.

    Args:
        topic: The topic.
        body: The content; at least one byte.
        tags: A tag that consumers can filter by.
        keys: Words to find it by later: one string of words separated by spaces, or several.
        properties: The application's properties; names that the system uses are refused.
        flag: A number for the application, stored with the message.
        wait_store: Whether the broker answers only when the message is as safe as configured.
        sharding_key: Messages with the same key go to the same queue, and so stay in order.
        delay_level: 1 to 18 for 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h; 0 for none.
        delay_seconds: Delay of the delivery, to the millisecond.
        deliver_at_ms: Time of the delivery, in milliseconds since the epoch.
        priority: The priority in a topic of the type PRIORITY; 0 is the lowest.

    Raises:
        MessageRefused: An argument breaks a rule; the text says which.
    """

    __slots__ = (
        "_extra",
        "_origin",
        "body",
        "flag",
        "keys",
        "sharding_key",
        "tags",
        "topic",
        "wait_store",
    )
    _origin: Message

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = "",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_store: bool = True,
        sharding_key: str | None = None,
        delay_level: int = 0,
        delay_seconds: float | None = None,
        deliver_at_ms: int | None = None,
        priority: int | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.tags = tags
        self.keys = keys if isinstance(keys, str) else _join_keys(keys)
        self.flag = flag
        self.wait_store = wait_store
        self.sharding_key = sharding_key
        self._extra = _property_text(properties) if properties else ""
        if delay_level or delay_seconds is not None or deliver_at_ms is not None:
            self._extra += _delay_properties(delay_level, delay_seconds, deliver_at_ms)
        if priority is not None:
            self._extra += _priority_property(priority, sharding_key)
        if flag:
            _check_flag(flag)
        if tags is not None or self.keys or sharding_key is not None:
            _check_values(tags, self.keys, sharding_key)

    def __repr__(self) -> str:
        size = len(self.body) if self.body is not None else 0
        return f"<Message topic={self.topic} tags={self.tags} keys={self.keys} bytes={size}>"

    @property
    def properties(self) -> dict[str, str]:
        """The application's properties, and those of a delay."""
        return decode_properties(self._extra.encode("utf-8", "replace"))

    def with_context(self, context: Mapping[str, str], *, is_same: bool = False) -> Message:
        """Return a copy of the message that carries the context of a distributed trace.

        Args:
            context: The names and values that are added to the properties.
            is_same: Whether the copy is sent in place of this message: see :attr:`origin`.

        Raises:
            MessageRefused: A name or a value breaks a rule.
        """
        new = copy.copy(self)
        new._extra += _property_text(context)
        if is_same:
            new._origin = self
        return new

    @property
    def origin(self) -> Message:
        """The message in whose place this copy is sent; the message itself if it is no copy."""
        found: Message = getattr(self, "_origin", self)
        return found

    @property
    def priority(self) -> int | None:
        """The priority, if it has one."""
        if not self._extra or f"{names.PRIORITY}{NAME_END}" not in self._extra:
            return None
        return int(self.properties[names.PRIORITY])

    @property
    def is_delayed(self) -> bool:
        """Whether the delivery of the message is delayed."""
        return bool(self._extra) and any(
            f"{name}{NAME_END}" in self._extra
            for name in (names.DELAY_LEVEL, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
        )

    def property_text(self, unique_id: str) -> str:
        """Return the property string, with ``unique_id`` as the message's id.

        Raises:
            MessageRefused: The properties are too long.
        """
        wait = "true" if self.wait_store else "false"
        if not (self._extra or self.tags or self.keys or self.sharding_key):
            return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02"
        text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02{self._extra}"
        if self.tags:
            text += f"TAGS\x01{self.tags}\x02"
        if self.keys:
            text += f"KEYS\x01{self.keys}\x02"
        if self.sharding_key:
            text += f"__SHARDINGKEY\x01{self.sharding_key}\x02"
        if len(text) * 4 > PROPERTIES_BYTES_MAX:
            size = len(text.encode("utf-8", "replace"))
            if size > PROPERTIES_BYTES_MAX:
                raise MessageRefused(
                    f"the properties take {size} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
                )
        return text


_good_topics: set[str] = set()
_GOOD_TOPICS_MAX = 10_000


def check_message(message: Message, *, body_bytes_max: int) -> None:
    """Refuse a message that the broker would refuse.

    Raises:
        MessageRefused: The message breaks a rule; the text says which.
    """
    body = message.body
    if type(body) is bytes and 0 < len(body) <= body_bytes_max and message.topic in _good_topics:
        return  # the usual message, at a glance
    if not isinstance(body, bytes | bytearray | memoryview):
        raise MessageRefused(f"the body is {type(body).__name__}, not bytes; encode it first")
    if not body:
        raise MessageRefused("the body is empty")
    if len(body) > body_bytes_max:
        raise MessageRefused(
            f"the body has {len(body)} bytes; at most {body_bytes_max} are allowed"
        )
    check_topic(message.topic)


def check_topic(topic: str) -> None:
    """Check that users may send to ``topic``; caches good names, since every send checks.

    Raises:
        MessageRefused: The name is illegal, or the topic is reserved for the system.
    """
    if not isinstance(topic, str):
        raise MessageRefused(f"the topic must be a string, not {topic!r}")
    if topic in _good_topics:
        return
    problem = topic_problem(topic)
    if problem is None and topic in NO_SEND_TOPICS:
        problem = f"sending to the topic {topic} is forbidden"
    if problem is not None:
        raise MessageRefused(problem)
    if len(_good_topics) < _GOOD_TOPICS_MAX:
        _good_topics.add(topic)


def _join_keys(keys: Sequence[str]) -> str:
    for key in keys:
        if not isinstance(key, str):
            raise MessageRefused(f"the key {key!r} must be a string")
        if not key or names.KEY_SEPARATOR in key:
            raise MessageRefused(f"the key {key!r} is empty or has blanks, which separate keys")
    return names.KEY_SEPARATOR.join(keys)


def _check_flag(flag: int) -> None:
    if not isinstance(flag, int):
        raise MessageRefused(f"the flag must be a whole number, not {flag!r}")
    if not -_FLAG_MAX <= flag <= _FLAG_MAX:
        raise MessageRefused(f"the flag {flag} does not fit in 32 bits")


def _check_values(*values: str | None) -> None:
    for value in values:
        if value is not None and not isinstance(value, str):
            raise MessageRefused(f"tags, keys and sharding_key must be strings, not {value!r}")
        if value and VALUE_END in value:
            raise MessageRefused(f"{value!r} has the character U+0002, which ends a property")


def _property_text(properties: Mapping[str, str]) -> str:
    text = ""
    for name, value in properties.items():
        if name in names.RESERVED or name == names.UNIQUE_KEY:
            raise MessageRefused(
                f"the property {name!r} is used by the system; choose another name"
            )
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(f"the property {name!r} must have a string as name and as value")
        if not name.strip() or not value.strip():
            raise MessageRefused(f"the property {name!r} has a blank name or value")
        if NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise MessageRefused(f"the property {name!r} has U+0001 or U+0002 in it")
        text += f"{name}\x01{value}\x02"
    return text


def _delay_properties(level: int, seconds: float | None, at_ms: int | None) -> str:
    if sum((bool(level), seconds is not None, at_ms is not None)) > 1:
        raise MessageRefused("give one of delay_level, delay_seconds and deliver_at_ms")
    if level:
        if not 0 < level <= DELAY_LEVEL_MAX:
            raise MessageRefused(f"the delay level {level} is not one of 1 to {DELAY_LEVEL_MAX}")
        return f"{names.DELAY_LEVEL}\x01{level}\x02"
    if seconds is not None:
        if not seconds > 0:
            raise MessageRefused(f"a delay of {seconds} s is not in the future")
        return f"{names.TIMER_DELAY_MS}\x01{round(seconds * 1000)}\x02"
    return f"{names.TIMER_DELIVER_MS}\x01{at_ms}\x02"


def _priority_property(priority: int, sharding_key: str | None) -> str:
    if not 0 <= priority <= _FLAG_MAX:
        raise MessageRefused(f"the priority {priority} is not one of 0 to {_FLAG_MAX}")
    if sharding_key:
        raise MessageRefused("give a sharding key or a priority, not both: each chooses a queue")
    return f"{names.PRIORITY}\x01{priority}\x02"


class SendStatus(enum.Enum):
    """Safety of a stored message; the message is stored in every case."""

    SEND_OK = ResponseCode.SUCCESS
    """As safe as configured."""
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    """The disk was too slow; a crash now could lose the message."""
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    """A replica was too slow."""
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    """There is no replica to store it."""


class SendResult(NamedTuple):
    """Queue, offset and ids of a stored message."""

    status: SendStatus
    message_id: str
    """The unique id, made by the client and kept over retries."""
    offset_id: str
    """The broker's id: its address and the message's position in the commit log."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None
    """The handle for recalling a timed message; see :meth:`Producer.recall`."""
    duplicate: bool = False
    """Whether an earlier attempt of unknown outcome had stored it. An offset of -1 then means that
    it is certainly stored, but its offset is no longer known."""


class ReceivedMessage:
    """A message as a broker stored it. Body and properties are decoded on first use.

    Attributes:
        queue: The queue from which it was pulled.
        queue_begin: The first offset of that queue at that time (``MIN_OFFSET``).
        queue_end: The end of that queue at that time (``MAX_OFFSET``).
        queue_offset: Its offset in the queue.
    """

    __slots__ = (
        "_body",
        "_properties",
        "_record",
        "_stored",
        "queue",
        "queue_begin",
        "queue_end",
        "queue_offset",
    )

    def __init__(
        self,
        record: Record | CutRecord,
        queue: MessageQueue,
        queue_end: int = 0,
        queue_begin: int = 0,
    ) -> None:
        self._stored = record
        self.queue = queue
        self.queue_end = queue_end
        self.queue_begin = queue_begin
        self.queue_offset = record.queue_offset
        self._record: Record | None = None
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage topic={self.topic} queue={self.queue.broker_name}/"
            f"{self.queue.queue_id} offset={self.queue_offset} id={self.message_id}>"
        )

    @property
    def topic(self) -> str:
        """The topic to which it was sent, even if it was read from a retry topic."""
        topic = self._stored.topic
        return self.properties.get(names.RETRY_TOPIC, topic) if topic[:1] == "%" else topic

    @property
    def record(self) -> Record:
        """All stored fields."""
        record = self._record
        if record is None:
            stored = self._stored
            record = self._record = stored if isinstance(stored, Record) else stored.decode()
        return record

    @property
    def stored_bytes(self) -> int:
        """The size of the body as stored, which may be compressed."""
        return len(self._stored.body)

    @property
    def body(self) -> bytes:
        """The decompressed body.

        Raises:
            RemoteProtocolError: It is marked as compressed, but cannot be decompressed.
        """
        body = self._body
        if body is None:
            stored = self._stored
            body = self._body = decompress(bytes(stored.body), stored.sys_flag)
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including the system's."""
        found = self._properties
        if found is None:
            found = self._properties = decode_properties(self._stored.properties_bytes)
        return found

    @property
    def tags(self) -> str | None:
        """The tag, if it has one."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The words by which it can be found."""
        return names.split_keys(self.properties.get(names.KEYS, ""))

    @property
    def message_id(self) -> str:
        """The sender's id, or the broker's if there is none."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The broker's id: its address and the position in the commit log."""
        return message_id(self.record.store_host_bytes, self.record.position)

    @property
    def sharding_key(self) -> str | None:
        """The key that keeps it in order with others."""
        return self.properties.get(names.SHARDING_KEY)

    @property
    def trace_context(self) -> dict[str, str]:
        """The context of its distributed trace, by W3C's names such as ``traceparent``.

        Empty if its sender has given it none.
        """
        properties = self.properties
        names_of_w3c = (names.TRACE_PARENT, names.TRACE_STATE, names.BAGGAGE)
        found = {name: properties[name] for name in names_of_w3c if name in properties}
        if names.TRACE_PARENT not in found and names.GRPC_TRACE_CONTEXT in properties:
            found[names.TRACE_PARENT] = properties[names.GRPC_TRACE_CONTEXT]
        return found

    @property
    def last_failure(self) -> ConsumeFailure | None:
        """Reason why it could not be handled last time, if it carries one."""
        return failure_in(self.properties)

    @property
    def priority(self) -> int | None:
        """The priority, if the sender gave it one."""
        text = self.properties.get(names.PRIORITY, "")
        return int(text) if text.isascii() and text.isdecimal() else None

    @property
    def wants_reply(self) -> bool:
        """Whether the sender waits for a reply; see :meth:`Producer.reply_to`."""
        properties = self.properties
        return names.CORRELATION_ID in properties and names.REPLY_TO_CLIENT in properties

    @property
    def position(self) -> int:
        """Its position in the broker's commit log."""
        return self.record.position

    @property
    def flag(self) -> int:
        """The sender's number."""
        return self.record.flag

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries."""
        return self.record.reconsume_times

    @property
    def born_ms(self) -> int:
        """Time at which it was sent, by the sender's clock."""
        return self.record.born_ms

    @property
    def store_ms(self) -> int:
        """Time at which it was stored, by the broker's clock."""
        return self.record.store_ms

    @property
    def born_host(self) -> tuple[str, int]:
        """The sender's address and port, as the broker saw them."""
        return unpack_host(self.record.born_host_bytes)

    @property
    def store_host(self) -> tuple[str, int]:
        """The broker's address and port."""
        return unpack_host(self.record.store_host_bytes)

    @property
    def backlog(self) -> int:
        """Number of messages after it in the queue when it was pulled."""
        return max(0, self.queue_end - self.queue_offset - 1)
