"""Checks of messages that are sent, and the records that are stored for them.

A send passes RocketMQ's checks in RocketMQ's order and becomes a ``Draft`` for the store. The
broker adds three properties to every message: the region, whether it is traced, and the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from rocketpost.broker.auto_created import AutoCreated
from rocketpost.broker.group.table import group_not_exist
from rocketpost.broker.kinds import SPECIAL, Kind
from rocketpost.broker.message_type import check_type, is_typed
from rocketpost.broker.priority import LOWEST, has_levels, queue_of
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.faults import (
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ServerError,
    TopicNotExist,
)
from rocketpost.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from rocketpost.codec.record import unpack_host
from rocketpost.errors import LocalProtocolError, RemoteProtocolError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import (
    NO_SEND_TOPICS,
    RETRY_PREFIX,
    dlq_topic,
    revive_topic,
    topic_problem,
)
from rocketpost.model.sysflag import BORN_HOST_V6, MULTI_TAGS, STORE_HOST_V6, TRANSACTION_MASK
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Draft

_VERSION_MAX_RECONSUME = 121  # 3.4.9: newer clients send their maximum number of retries.
_HOST_V4_BYTES = 8
_CLIENT_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK)

_LOOKED_AT = SPECIAL | {names.PRIORITY}
NOT_PLAIN = _LOOKED_AT | {
    names.MSG_REGION,
    names.TRACE_ON,
    names.CLUSTER,
    names.POP_CK,
    names.PRODUCER_SEQUENCE,
    names.UNIQUE_KEY,
    names.KEYS,
}
"""Properties that the broker looks at, changes or indexes."""
BATCH_COUNT_MAX = 16_384
"""Messages of one batch: no other request is served while they are stored (ADR 0019)."""
_UNIQUE_KEY = names.UNIQUE_KEY + "\x01"
_KEYS = names.KEYS + "\x01"
_PLAIN_RESTS_MAX = 4096

_tags_code = lru_cache(maxsize=8192)(string_hash)


class SendHeader(Protocol):
    """Fields that both forms of a send header have."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    sequence: str | None


class Topics(Protocol):
    """The part of the topic table that sending uses."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...

    def create_on_send(
        self, topic: str, *, template: str, queue_nums: int, unit_mode: bool, by: str
    ) -> TopicConfig | None:
        """Create ``topic`` as its template allows; return None if it does not."""
        ...

    def create_internal(self, topic: str, *, queue_nums: int, by: str = "") -> TopicConfig:
        """Return a retry or dead-letter topic, created if need be."""
        ...


class Groups(Protocol):
    """The part of the group table that sending uses."""

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Return the configuration of ``group``; None when it is unknown and may not be created."""
        ...

    def use(self, group: str) -> None:
        """Note that a message waits for ``group``, so the group must not expire."""
        ...


class SendService:
    """Turns send requests into drafts, or refuses them.

    Args:
        new_unique_id: Creates the id of a message whose client set none.
        random_below: Picks a queue for a message whose client chose none.
        holds_locks: Whether a group currently consumes in order.
        kinds: The kinds of messages that are not plain, in the order in which they are tried.
        auto: Topics that sends created and that have no message yet.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        clock: Clock,
        store_host: bytes,
        cluster_name: str,
        region: str,
        new_unique_id: Callable[[], str],
        random_below: Callable[[int], int],
        holds_locks: Callable[[str], bool],
        kinds: Sequence[Kind] = (),
        auto: AutoCreated | None = None,
    ) -> None:
        self._topics = topics
        self._find = topics.find
        self._plain_rests: dict[str, int] = {}
        self._groups = groups
        self._clock = clock
        self._store_host = store_host
        self._store_flag = STORE_HOST_V6 if len(store_host) > _HOST_V4_BYTES else 0
        self._cluster_name = cluster_name
        self._no_sends = NO_SEND_TOPICS | {revive_topic(cluster_name)}
        self._region = region
        self._new_unique_id = new_unique_id
        self._random_below = random_below
        self._holds_locks = holds_locks
        self._kinds = kinds
        self._auto = auto
        self._unused: Mapping[str, int] = {} if auto is None else auto.unused
        self.configure(
            message_bytes_max=4 * 1024 * 1024,
            trace_on=True,
            accept_from_ms=0,
        )

    def configure(
        self,
        *,
        message_bytes_max: int,
        properties_bytes_max: int = PROPERTIES_BYTES_MAX,
        trace_on: bool,
        accept_from_ms: int,
        broker_writable: bool = True,
        checks_types: bool = True,
    ) -> None:
        """Apply settings that may change while the broker runs."""
        self.checks_types = checks_types
        """Whether messages must have the type of their topic."""
        self._broker_writable = broker_writable
        self.is_closed = bool(accept_from_ms) or not broker_writable
        """Whether sends may be refused regardless of their contents."""
        self.message_bytes_max = message_bytes_max
        self.properties_bytes_max = properties_bytes_max
        self._accept_from_ms = accept_from_ms
        self._added = {
            names.MSG_REGION: self._region,
            names.TRACE_ON: "true" if trace_on else "false",
            names.CLUSTER: self._cluster_name,
        }
        self.added_properties = encode_properties(self._added)
        """The properties that every message gets, encoded."""

    def draft(
        self, header: SendHeader, body: bytes, *, born_host: bytes, client_version: int
    ) -> Draft:
        """Return the message to store.

        Raises:
            Fault: The message is refused; nothing was changed, except that a topic may have been
                created for it.
        """
        topic = header.topic
        config = self._find(topic)
        if config is None or self.is_closed or topic in self._no_sends:
            config = self._topic_for(header, born_host)
        queue_id = header.queue_id
        if not 0 <= queue_id < config.write_queue_nums:
            queue_id = self._queue_for(config, queue_id)
        if topic.startswith(RETRY_PREFIX):
            config, queue_id = self._retry_or_dlq(config, queue_id, header, client_version)
            topic = config.topic_name
        encoded, tags_code, keys, is_special = self._properties(header.properties)
        is_short = len(encoded) <= self.properties_bytes_max
        if not 0 < len(body) <= self.message_bytes_max or not is_short:
            self._check_size(len(body), len(encoded))
        if config.attributes:
            if self.checks_types and is_typed(config):
                check_type(config, decode_properties(encoded))
            if has_levels(config):
                queue_id = LOWEST  # unless its properties say otherwise, see below
        draft = Draft(
            topic,
            queue_id,
            header.flag,
            self._sys_flag(header.sys_flag, config, born_host),
            header.born_timestamp,
            born_host,
            self._store_host,
            header.reconsume_times,
            0,
            body,
            encoded,
            tags_code,
            keys,
        )
        if is_special:
            draft = self._prepare_special(draft, config)
            if topic.startswith(RETRY_PREFIX):
                self._groups.use(topic.removeprefix(RETRY_PREFIX))
        if self._unused:
            self._use(config.topic_name)
        return draft

    def draft_batch(self, header: SendHeader, body: bytes, *, born_host: bytes) -> list[Draft]:
        """Return the messages of a batch, to be stored together.

        Raises:
            Fault: The whole batch is refused.
        """
        config = self._topic_for(header, born_host)
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal("a batch cannot be sent to a retry topic")
        queue_id = self._queue_for(config, header.queue_id)
        self._check_size(len(body), 0)
        try:
            items = decode_batch(body, count_max=BATCH_COUNT_MAX)
        except RemoteProtocolError as error:
            raise MessageIllegal(f"the batch is refused: {error}") from None
        sys_flag = self._sys_flag(header.sys_flag, config, born_host)
        shared = decode_properties(header.properties.encode("utf-8", "replace"))
        # Java's newer clients give the batch a key too; each message keeps its own (ADR 0012).
        shared.pop(names.UNIQUE_KEY, None)
        shared.pop(names.WAIT_STORE, None)  # it concerns this request; each message has its own
        if has_levels(config):  # they are stored together, at the level of the first one
            level = queue_of(shared | decode_properties(items[0].properties), config)
            queue_id = queue_id if level is None else level
        typed = self.checks_types and is_typed(config)
        drafts = []
        for at, item in enumerate(items):
            encoded, tags_code, keys = self._batch_properties(item.properties, shared, at)
            if typed:
                check_type(config, decode_properties(encoded))
            if not item.body or len(encoded) > self.properties_bytes_max:
                self._check_entry(at, len(item.body), len(encoded))
            drafts.append(
                Draft(
                    config.topic_name,
                    queue_id,
                    item.flag,
                    sys_flag,
                    header.born_timestamp,
                    born_host,
                    self._store_host,
                    header.reconsume_times,
                    0,
                    item.body,
                    encoded,
                    tags_code,
                    keys,
                )
            )
        if self._unused:
            self._use(config.topic_name)
        return drafts

    def _batch_properties(
        self, own: bytes, shared: dict[str, str], at: int
    ) -> tuple[bytes, int, tuple[str, ...]]:
        if shared:
            own = _encode(shared | decode_properties(own))
        encoded, tags_code, keys, is_special = self._properties(own.decode("utf-8", "replace"))
        if is_special and not SPECIAL.isdisjoint(decode_properties(encoded)):
            raise MessageIllegal(
                f"message {at} of the batch is delayed or transactional; send such messages alone"
            )
        return encoded, tags_code, keys

    def _check_entry(self, at: int, body_bytes: int, properties_bytes: int) -> None:
        try:
            self._check_size(body_bytes, properties_bytes)
        except MessageIllegal as error:
            raise MessageIllegal(f"message {at} of the batch is refused: {error}") from None

    def _topic_for(self, header: SendHeader, born_host: bytes) -> TopicConfig:
        if self._accept_from_ms and self._clock.now_ms() < self._accept_from_ms:
            raise ServerError("this broker does not accept messages yet")
        topic = header.topic
        if topic in self._no_sends:
            raise NoPermission(f"messages cannot be sent to {topic}: only the broker writes to it")
        config = self._topics.find(topic)
        if config is None:
            if problem := topic_problem(topic):
                raise InvalidParameter(problem)
            config = self._create(header, born_host)
        if config.order and not self._broker_writable:
            # Other topics are drained by their routes; an ordered one must not be split meanwhile.
            raise NoPermission(f"this broker accepts no messages of the ordered topic {topic} now")
        return config

    def _create(self, header: SendHeader, born_host: bytes) -> TopicConfig:
        topic = header.topic
        host, port = unpack_host(born_host)
        by = f"{host}:{port} cause=send producer_group={header.producer_group}"
        if topic.startswith(RETRY_PREFIX):
            group = topic.removeprefix(RETRY_PREFIX)
            if self._groups.find_or_create(group, by=by) is None:
                raise group_not_exist(group)
            return self._topics.create_internal(topic, queue_nums=1, by=by)
        config = self._topics.create_on_send(
            topic,
            template=header.default_topic,
            queue_nums=header.default_topic_queue_nums,
            unit_mode=header.unit_mode,
            by=by,
        )
        if config is None:
            raise TopicNotExist(
                f"the topic {topic} does not exist and may not be created by sending; "
                f"create it first, for example: mqadmin updateTopic -t {topic} -c CLUSTER"
            )
        return config

    def _use(self, topic: str) -> None:
        """Note that a topic accepts a message: from now on it stays."""
        if self._auto is not None:
            self._auto.remove(topic)

    def _queue_for(self, config: TopicConfig, queue_id: int) -> int:
        if queue_id < 0:
            return self._random_below(max(config.write_queue_nums, 1))
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise InvalidParameter(
                f"queue {queue_id} of the topic {config.topic_name} does not exist: it has "
                f"{config.write_queue_nums} write and {config.read_queue_nums} read queues"
            )
        return queue_id

    def _prepare_special(self, draft: Draft, config: TopicConfig) -> Draft:
        """Return the message to store for one that is not plain."""
        properties = decode_properties(draft.properties)
        queue_id = queue_of(properties, config)
        if queue_id is not None:
            draft = msgspec.structs.replace(draft, queue_id=queue_id)
        for kind in self._kinds:
            prepared = kind.prepare(draft, properties)
            if prepared is not None:
                return prepared
        return draft

    def _properties(self, text: str) -> tuple[bytes, int, tuple[str, ...], bool]:
        """Return the properties to store, the tags code, the keys to index, and True if special.

        Most messages of a producer differ only in their unique key and their keys, so the tags code
        of the other properties is cached, as long as none of them is special.
        """
        start = text.find(_UNIQUE_KEY)
        if start == 0 or (start > 0 and text[start - 1] == "\x02"):
            value = start + len(_UNIQUE_KEY)
            end = text.find("\x02", value)
            if end > value:
                rest = text[:start] + text[end:]
                words = ""
                tags_code = self._plain_rests.get(rest)
                if tags_code is None:
                    rest, words = _without_keys(rest)
                    tags_code = self._plain_rests.get(rest)
                if tags_code is not None:
                    keys = _keys(text[value:end], words) if words else (text[value:end],)
                    return text.encode() + self.added_properties, tags_code, keys, False
                self._cache_plain(rest, has_keys=bool(words))
        return self._parse_properties(text)

    def _cache_plain(self, rest: str, *, has_keys: bool) -> None:
        """Remember properties that are stored as they are: parsing them would change nothing."""
        pairs = [pair.partition("\x01")[::2] for pair in rest.split("\x02")]
        properties = dict(pairs)
        # Only the place of the unique key and that after the last separator are empty.
        is_sound = len(properties) == len(pairs) - 1 and pairs[-1] == ("", "")
        del properties[""]
        if has_keys:
            del properties[names.KEYS]
        if is_sound and all(properties.values()) and NOT_PLAIN.isdisjoint(properties):
            if len(self._plain_rests) >= _PLAIN_RESTS_MAX:
                self._plain_rests.clear()
            self._plain_rests[rest] = _tags_code(properties.get(names.TAGS, ""))

    def _parse_properties(self, text: str) -> tuple[bytes, int, tuple[str, ...], bool]:
        properties = decode_properties(text.encode("utf-8", "replace"))
        is_special = not _LOOKED_AT.isdisjoint(properties)
        properties.pop(names.POP_CK, None)
        # A client that forwards a message with all its properties is not its numbered producer.
        properties.pop(names.PRODUCER_SEQUENCE, None)
        if names.UNIQUE_KEY not in properties:
            properties[names.UNIQUE_KEY] = self._new_unique_id()
        properties.update(self._added)
        tags_code = _tags_code(properties.get(names.TAGS, ""))
        keys = _keys(properties[names.UNIQUE_KEY], properties.get(names.KEYS, ""))
        return _encode(properties), tags_code, keys, is_special

    def _check_size(self, body_bytes: int, properties_bytes: int) -> None:
        if not body_bytes:
            raise MessageIllegal("the message has no body")
        if body_bytes > self.message_bytes_max:
            raise MessageIllegal(
                f"the message body has {body_bytes} bytes; "
                f"at most {self.message_bytes_max} (maxMessageSize) are allowed"
            )
        if properties_bytes > self.properties_bytes_max:
            raise MessageIllegal(
                f"the message properties take {properties_bytes} bytes; "
                f"at most {self.properties_bytes_max} are allowed"
            )

    def _sys_flag(self, sys_flag: int, config: TopicConfig, born_host: bytes) -> int:
        flag = sys_flag & _CLIENT_FLAGS | self._store_flag
        if config.topic_filter_type == "MULTI_TAG":
            flag |= MULTI_TAGS
        return flag | BORN_HOST_V6 if len(born_host) > _HOST_V4_BYTES else flag

    def _retry_or_dlq(
        self, config: TopicConfig, queue_id: int, header: SendHeader, client_version: int
    ) -> tuple[TopicConfig, int]:
        """Divert a message that was retried too often, or by an ordered group, to the DLQ."""
        group_name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find_or_create(group_name)
        if group is None:
            raise group_not_exist(group_name)
        limit = group.retry_max_times
        if client_version >= _VERSION_MAX_RECONSUME and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        if header.reconsume_times > limit or self._holds_locks(group_name):
            return self._topics.create_internal(dlq_topic(group_name), queue_nums=1), 0
        return config, queue_id


def _without_keys(text: str) -> tuple[str, str]:
    """Return properties with an empty KEYS property, and its value; "" if there is none."""
    start = text.find(_KEYS)
    if start == 0 or (start > 0 and text[start - 1] == "\x02"):
        value = start + len(_KEYS)
        end = text.find("\x02", value)
        if end > value:
            return text[:value] + text[end:], text[value:end]
    return text, ""


def _keys(unique_key: str, words: str) -> tuple[str, ...]:
    return (unique_key, *names.split_keys(words))


def _encode(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
