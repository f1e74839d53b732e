"""The topics of one broker: their configuration, creation and numbers of queues.

Queue numbers. ``writeQueueNums`` is the number of queues that producers may write, and
``readQueueNums`` the number that consumers are given. To shrink a topic, lower the write number,
wait until the last queues are drained, then lower the read number. A step out of order would hide
messages and is refused unless it is forced (ADR 0056).

Every change gives the table a new :class:`DataVersion` and calls ``on_change``; the server then
saves the table and registers it with the name servers. Each change is logged with the client and
the differences, except for topics that the broker creates for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rocketpost.broker.attributes import (
    MESSAGE_TYPE,
    MIXED,
    TOPIC_ATTRIBUTES,
    changed_attributes,
)
from rocketpost.broker.auto_created import AutoCreated
from rocketpost.codec.bodies.topic import TopicTableBody, decode_topic_table, encode_topic_table
from rocketpost.codec.faults import InvalidParameter, ServerError, TopicNotExist
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model import names
from rocketpost.model.changes import apply, differences, members_text
from rocketpost.model.clock import Clock
from rocketpost.model.topic import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicChange,
    TopicConfig,
)

logger = logging.getLogger(__name__)

QUEUE_COUNT_MAX: Final = 65_536
"""Number of queues; more would not fit into one answer about the topic."""

TOPIC_COUNT_MAX: Final = 65_536
"""Number of topics; more would not fit into one registration with a name server."""

PERM_MAX: Final = 7
_READ_WRITE: Final = PERM_READ | PERM_WRITE
_INHERITED: Final = _READ_WRITE | PERM_INHERIT
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})
_SYS_FLAG_MAX: Final = 3
UNIT: Final = 1
UNIT_SUBSCRIBED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """Settings of the broker that concern topics."""

    auto_create: bool = True
    default_queue_count: int = 8
    cluster_topic: bool = True
    broker_topic: bool = True
    trace_topic: str | None = None
    """The trace topic, if the broker creates it at start."""
    mixed_types: bool = False
    """Whether a topic may have the type MIXED."""


class TopicUpdate(NamedTuple):
    """A topic before and after an update; ``before`` is None if it is new."""

    before: TopicConfig | None
    after: TopicConfig


class TopicTable:
    """The topics of one broker. Owned by the event loop.

    Args:
        on_change: Called with the topic's name after each creation, update and deletion.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        cluster_name: str,
        broker_name: str,
        rules: TopicRules | None = None,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._configs: dict[str, TopicConfig] = {}
        self.auto = AutoCreated("topic", clock=clock)
        """Topics that were created by sends, and the limit on their rate."""
        self.on_change = on_change
        self.rules = rules or TopicRules()
        self.version = DataVersion()
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""
        self._builtin = {
            config.topic_name: config
            for config in _builtin_topics(cluster_name, broker_name, self.rules)
        }

    @property
    def configs(self) -> Mapping[str, TopicConfig]:
        """Every topic by name."""
        return self._configs

    def find(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration, or None."""
        return self._configs.get(topic)

    @property
    def system_topics(self) -> frozenset[str]:
        """The topics reserved for the system, whether or not they exist."""
        return names.SYSTEM_TOPICS | self._builtin.keys()

    def is_system(self, topic: str) -> bool:
        """Tell whether this topic is reserved for the system."""
        return topic in self._builtin or names.is_system_topic(topic)

    def require(self, topic: str) -> TopicConfig:
        """Return a topic's configuration.

        Raises:
            TopicNotExist: There is no such topic here.
        """
        config = self._configs.get(topic)
        if config is None:
            raise TopicNotExist(f"the topic {topic!r} does not exist on this broker")
        return config

    def add_builtin(self) -> None:
        """Add the built-in topics; TBW102 and the like follow the current settings."""
        for config in self._builtin.values():
            self._store(config)
        if not self.rules.auto_create:
            self.discard(names.AUTO_CREATE_TOPIC)

    def plan(self, wanted: TopicChange | TopicConfig) -> TopicUpdate:
        """Return the result of :meth:`update`, without changing anything.

        Raises:
            InvalidParameter: As :meth:`update`.
            ServerError: As :meth:`update`.
        """
        before = self._configs.get(wanted.topic_name)
        after = apply(wanted, before or TopicConfig())
        self._check(after)
        attributes = changed_attributes(
            TOPIC_ATTRIBUTES, before.attributes if before else None, wanted.attributes
        )
        return TopicUpdate(before, msgspec.structs.replace(after, attributes=attributes))

    def plan_all(self, wanted: Sequence[TopicChange]) -> list[TopicUpdate]:
        """Return the results of :meth:`update` for different topics, without changing anything.

        Raises:
            InvalidParameter: As :meth:`update`.
            ServerError: As :meth:`update`, or there is no room for all new ones.
        """
        updates = [self.plan(change) for change in wanted]
        self._check_room(sum(update.before is None for update in updates))
        return updates

    def update(self, wanted: TopicChange | TopicConfig, *, by: str = "") -> TopicUpdate:
        """Create or change a topic; fields that a :class:`TopicChange` omits are kept.

        Args:
            wanted: The topic; keys of its attributes are signed, ``+k`` or ``-k``.
            by: The client, for the log.

        Raises:
            InvalidParameter: The name, a number or a bit is not allowed.
            ServerError: An attribute is not allowed.
        """
        updated = self.plan(wanted)
        self.auto.remove(wanted.topic_name)
        self._store(updated.after, by)
        return updated

    def create_on_send(
        self,
        topic: str,
        *,
        template: str,
        queue_nums: int,
        unit_mode: bool = False,
        by: str = "",
    ) -> TopicConfig | None:
        """Return ``topic``, created from ``template`` if need be; None when that is not allowed.

        Raises:
            InvalidParameter: The name is not legal.
            SystemBusy: Too many topics are being created, or there are too many.
        """
        existing = self._configs.get(topic)
        if existing is not None:
            return existing
        if problem := names.topic_problem(topic):
            raise InvalidParameter(problem)
        model = self._configs.get(template)
        closed = template == names.AUTO_CREATE_TOPIC and not self.rules.auto_create
        if model is None or closed or not model.perm & PERM_INHERIT:
            return None
        count = max(1, min(queue_nums, model.write_queue_nums))
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=model.perm & ~PERM_INHERIT,
            topic_sys_flag=UNIT if unit_mode else 0,
            topic_filter_type=model.topic_filter_type,
        )
        self.auto.admit(topic, by, count=len(self._configs), count_max=TOPIC_COUNT_MAX)
        self._store(config, by)
        return config

    def create_internal(
        self,
        topic: str,
        *,
        queue_nums: int,
        order: bool = False,
        unit: bool = False,
        by: str = "",
    ) -> TopicConfig:
        """Return a retry or dead-letter topic, created if need be; only its order flag may change.

        Raises:
            InvalidParameter: The name is not legal.
        """
        config = self._configs.get(topic)
        if config is None:
            if problem := names.topic_problem(topic):
                raise InvalidParameter(problem)
            count = min(max(1, queue_nums), QUEUE_COUNT_MAX)
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                order=order,
                topic_sys_flag=UNIT_SUBSCRIBED if unit else 0,
            )
        elif config.order != order:
            config = msgspec.structs.replace(config, order=order)
        self._store(config, by)
        return config

    def widen_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        """Return a retry topic with at least that many queues, created if need be.

        Raises:
            InvalidParameter: The name is not legal.
        """
        return self._widen(self.create_internal(topic, queue_nums=queue_nums), queue_nums)

    def adopt(self, topic: str, *, queue_nums: int) -> None:
        """Add a topic that has queues in the store but is not in the saved table.

        A send may create a topic and be acknowledged just before a crash; its messages are stored.
        Likewise a retry topic may have gained queues. The queue numbers of other topics are kept. A
        full table accepts the topic anyway: it had its place, and the broker has to start.
        """
        self.auto.remove(topic)
        known = self._configs.get(topic)
        if known is not None:
            if topic.startswith(names.RETRY_PREFIX):
                self._widen(known, queue_nums)
        elif _name_problem(topic) is None:
            count = min(max(1, queue_nums), QUEUE_COUNT_MAX)
            config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            self._put(config, "recovery")

    def mark_ordered(self, ordered: Iterable[str]) -> None:
        """Set the order flag of exactly the topics that the name servers list as ordered.

        Retry topics keep their flag, which follows their group.
        """
        wanted = frozenset(ordered)
        for config in list(self._configs.values()):
            if names.is_retry_or_dlq(config.topic_name):
                continue
            if config.order != (config.topic_name in wanted):
                self.auto.remove(config.topic_name)
                self._store(
                    msgspec.structs.replace(config, order=not config.order), "the order table"
                )

    def delete(self, topic: str, *, by: str = "") -> TopicConfig | None:
        """Delete a topic; return its configuration, None if there was none.

        Raises:
            InvalidParameter: The name is not legal, or the system needs the topic.
        """
        self.check_name(topic)
        return self.discard(topic, by)

    def discard(self, topic: str, by: str = "") -> TopicConfig | None:
        """Delete a topic with any name; return its configuration, None if there was none."""
        self.auto.remove(topic)
        config = self._configs.pop(topic, None)
        if config is not None:
            logger.info("topic deleted: topic=%s by=%s %s", topic, by or "broker", _members(config))
            self._note_change(topic)
        return config

    def check_name(self, topic: str) -> None:
        """Check that a user may change or delete a topic of this name.

        Raises:
            InvalidParameter: The name is not legal, or the system needs the topic.
        """
        if problem := names.topic_problem(topic):
            raise InvalidParameter(problem)
        if self.is_system(topic):
            raise InvalidParameter(f"the topic {topic!r} belongs to the system; use another name")

    def follow(self, master: TopicTableBody, *, gone: Iterable[str] | None = None) -> None:
        """Apply the table of the master, with its version.

        Args:
            master: All its topics, or those that have changed.
            gone: Topics that it has deleted; None if topics that it lacks are to be removed. Then
                built-in ones stay: a master of another version may have fewer of them.
        """
        wanted: dict[str, TopicConfig] = {}
        for name, config in master.topic_config_table.items():
            if problem := _name_problem(name):
                logger.warning("topic of the master is left out: reason=%s", problem)
            else:
                wanted[name] = msgspec.structs.replace(config, topic_name=name)
        by = "the master"
        if gone is None:
            gone = [each for each in self._configs if each not in wanted | self._builtin]
        for topic in gone:
            self.discard(topic, by)
        for name, config in wanted.items():
            if self._configs.get(name) != config:
                self._put(config, by)
        if self.version != master.data_version:
            self.version = master.data_version
            self.revision += 1

    def touch(self) -> None:
        """Give the table a new version when only the broker's permission has changed."""
        self._note_change("")

    def body(self) -> TopicTableBody:
        """Return the table as name servers, slaves and tools read it."""
        return TopicTableBody(data_version=self.version, topic_config_table=self._configs)

    def to_json(self) -> bytes:
        """Return the text of ``topics.json``."""
        return msgspec.json.format(encode_topic_table(self.body(), mappings=False), indent=2)

    def load(self, data: bytes) -> None:
        """Load the table from ``topics.json``; illegal names are refused.

        Raises:
            StoreError: The text is not a topic table.
        """
        try:
            body = decode_topic_table(data)
        except RemoteProtocolError as error:
            raise StoreError(f"topics.json cannot be read: {error}") from None
        for name, config in body.topic_config_table.items():
            if problem := _name_problem(name):
                raise StoreError(f"topics.json cannot be used: {problem}")
            self._configs[name] = msgspec.structs.replace(config, topic_name=name)
        self.version = body.data_version

    def _check(self, wanted: TopicConfig) -> None:
        self.check_name(wanted.topic_name)
        for key, count in (
            ("readQueueNums", wanted.read_queue_nums),
            ("writeQueueNums", wanted.write_queue_nums),
        ):
            if not 1 <= count <= QUEUE_COUNT_MAX:
                raise InvalidParameter(f"{key}={count} must be between 1 and {QUEUE_COUNT_MAX}")
        if not 0 <= wanted.perm <= PERM_MAX:
            raise InvalidParameter(f"perm={wanted.perm} must be between 0 and {PERM_MAX}")
        if wanted.topic_filter_type not in _FILTER_TYPES:
            raise InvalidParameter(
                f"topicFilterType={wanted.topic_filter_type!r} must be SINGLE_TAG or MULTI_TAG"
            )
        if not 0 <= wanted.topic_sys_flag <= _SYS_FLAG_MAX:
            raise InvalidParameter(f"topicSysFlag={wanted.topic_sys_flag} must be between 0 and 3")
        if wanted.attributes.get("+" + MESSAGE_TYPE) == MIXED and not self.rules.mixed_types:
            raise InvalidParameter(
                f"{MESSAGE_TYPE}={MIXED} is not allowed on this broker: set "
                "enableMixedMessageType=true, or leave the attribute out, which allows all types"
            )

    def _widen(self, config: TopicConfig, queue_nums: int) -> TopicConfig:
        if config.write_queue_nums < queue_nums:
            config = msgspec.structs.replace(
                config,
                read_queue_nums=max(config.read_queue_nums, queue_nums),
                write_queue_nums=queue_nums,
            )
            self._store(config)
        return config

    def _store(self, config: TopicConfig, by: str = "") -> None:
        name = config.topic_name
        if self._configs.get(name) == config:
            return
        self._check_room(name not in self._configs)
        self._put(config, by)

    def _check_room(self, more: int) -> None:
        if more and len(self._configs) + more > TOPIC_COUNT_MAX:
            raise ServerError(
                f"this broker has {len(self._configs)} topics and accepts no more than "
                f"{TOPIC_COUNT_MAX}"
            )

    def _put(self, config: TopicConfig, by: str) -> None:
        self._log_change(self._configs.get(config.topic_name), config, by)
        self._configs[config.topic_name] = config
        self._note_change(config.topic_name)

    def _log_change(self, before: TopicConfig | None, after: TopicConfig, by: str) -> None:
        name = after.topic_name
        if before is None:
            if by or not self.is_system(name):
                logger.info(
                    "topic created: topic=%s by=%s %s", name, by or "broker", _members(after)
                )
            return
        changes = " ".join(map(str, differences(before, after)))
        logger.info("topic changed: topic=%s by=%s %s", name, by or "broker", changes)

    def _note_change(self, topic: str) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self.revision += 1
        if self.on_change is not None:
            self.on_change(topic)


def _members(config: TopicConfig) -> str:
    return members_text(msgspec.structs.replace(config, topic_name=""))


def _name_problem(name: str) -> str | None:
    # Java builds names with a plus sign for POP retries; they occur only in its files.
    return names.topic_problem(name.replace("+", "_"))


def _builtin_topics(cluster: str, broker: str, rules: TopicRules) -> list[TopicConfig]:
    def topic(name: str, count: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(
            topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm
        )

    topics = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, _INHERITED if rules.cluster_topic else PERM_INHERIT),
        topic(broker, 1, _INHERITED if rules.broker_topic else PERM_INHERIT),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.SCHEDULE_TOPIC, 18),
        topic(names.reply_topic(cluster), 1),
        topic(names.revive_topic(cluster), 8),
        topic(f"{names.MEMBER_TOPIC_PREFIX}{broker}", 1, PERM_INHERIT),
        topic(names.HALF_TOPIC, 1),
        topic(names.OP_HALF_TOPIC, 1),
        topic(names.TIMER_TOPIC, 1),
    ]
    if rules.auto_create:
        topics.append(topic(names.AUTO_CREATE_TOPIC, rules.default_queue_count, _INHERITED))
    if rules.trace_topic is not None:
        topics.append(topic(rules.trace_topic, 1))
    return topics
