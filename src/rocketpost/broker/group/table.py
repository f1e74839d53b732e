"""The consumer groups of one broker: their configuration, and the topics they may not read.

The log has a line for each creation, change and deletion, with the client and the differences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rocketpost.broker.attributes import GROUP_ATTRIBUTES, changed_attributes
from rocketpost.broker.auto_created import AutoCreated
from rocketpost.broker.own_state import check_deletion
from rocketpost.broker.topic import QUEUE_COUNT_MAX
from rocketpost.codec.bodies.group import GroupTableBody, decode_group_table, encode_group_table
from rocketpost.codec.faults import GroupNotExist, InvalidParameter, ServerError
from rocketpost.errors import ConfigError, RemoteProtocolError, StoreError
from rocketpost.model import names
from rocketpost.model.changes import apply, differences, value_text
from rocketpost.model.clock import Clock
from rocketpost.model.group import GroupChange, GroupConfig
from rocketpost.model.retry_policy import RetryPolicy, read_retry_policy
from rocketpost.model.topic import DataVersion

logger = logging.getLogger(__name__)

GROUP_COUNT_MAX: Final = 32_768
"""Number of groups; more would not fit into one answer that lists them."""

FORBIDDEN_READ_BIT: Final = 2
_INT32_MAX: Final = 2**31 - 1
_POLICY_BYTES_MAX: Final = 4096
_CONSUME_MINUTES: Final = 15


class GroupTable:
    """The consumer groups of one broker. Owned by the event loop.

    Args:
        auto_create: Whether using an unknown group creates it.
        timed: Whether the broker has timed messages, which retry policies need.
        on_change: Called with the group's name after each creation, update and deletion.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        auto_create: bool = True,
        timed: bool = True,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self.on_change = on_change
        self._configs: dict[str, GroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.auto_create = auto_create
        self.keeps_new = True
        """Whether groups that are created by use are kept; a follower leaves that to its leader."""
        self._timed = timed
        self.auto = AutoCreated("group", clock=clock)
        """Groups that were created by use, and the limit on their rate."""
        self._policies: dict[str, RetryPolicy | None] = {}  # those that were looked up
        self.version = DataVersion()
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""
        self._known_ms = 0  # deletions until then are known here

    @property
    def configs(self) -> Mapping[str, GroupConfig]:
        """Every group by name."""
        return self._configs

    def add_builtin(self) -> None:
        """Add the groups that RocketMQ's own tools use."""
        for group in names.SYSTEM_GROUPS:
            if group not in self._configs:
                self._store(GroupConfig(group_name=group), "")

    def find(self, group: str) -> GroupConfig | None:
        """Return a group's configuration, or None."""
        return self._configs.get(group)

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Return a group's configuration; None when it is unknown and may not be created.

        Args:
            group: The group.
            by: The client that uses it, for the log.

        Raises:
            SystemBusy: Too many groups are being created, or there are too many.
        """
        config = self._configs.get(group)
        if config is None and self._may_create(group):
            config = GroupConfig(group_name=group)
            if not self.keeps_new:
                return config
            self.auto.admit(group, by, count=len(self._configs), count_max=GROUP_COUNT_MAX)
            self._store(config, by)
        return config

    def use(self, group: str) -> None:
        """Note that a message waits to be retried for a group: from now on the group stays."""
        self.auto.remove(group)

    def retry_policy(self, group: str) -> RetryPolicy | None:
        """Return the retry delays of a group.

        None means the delay levels, as for most groups, for unknown groups, and for a policy that
        another broker wrote and this one cannot read.
        """
        if not self._timed or (config := self._configs.get(group)) is None:
            return None
        if group not in self._policies:
            try:
                self._policies[group] = read_retry_policy(config.group_retry_policy)
            except ConfigError as error:
                logger.warning("retry policy without effect: group=%s reason=%s", group, error)
                self._policies[group] = None
        return self._policies[group]

    def require(self, group: str, *, by: str = "") -> GroupConfig:
        """Return a group's configuration, creating the group if that is allowed.

        Raises:
            GroupNotExist: It is unknown and may not be created.
            SystemBusy: Too many groups are being created, or there are too many.
        """
        config = self.find_or_create(group, by=by)
        if config is None:
            raise group_not_exist(group)
        return config

    def adopt(self, group: str, *, used_ms: int) -> None:
        """Restore a group that was created by use just before a crash.

        A group last used before the last change of the saved or followed table was deleted and
        stays deleted. A full table accepts the group anyway: it had a place there, and the broker
        has to start.
        """
        unknown = group not in self._configs and names.group_problem(group) is None
        if unknown and used_ms >= self._known_ms:
            self._put(GroupConfig(group_name=group), "recovery")

    def plan(self, wanted: GroupChange | GroupConfig) -> GroupConfig:
        """Return the result of :meth:`update` on a group, without changing it.

        Raises:
            InvalidParameter: As :meth:`update`.
            ServerError: As :meth:`update`.
        """
        before = self._configs.get(wanted.group_name)
        after = apply(wanted, before or GroupConfig())
        _check(after, before, timed=self._timed)
        attributes = changed_attributes(
            GROUP_ATTRIBUTES, before.attributes if before else None, wanted.attributes
        )
        return msgspec.structs.replace(after, attributes=attributes)

    def plan_all(self, wanted: Sequence[GroupChange]) -> list[GroupConfig]:
        """Return the results of :meth:`update` for different groups, without changing anything.

        Raises:
            InvalidParameter: As :meth:`update`.
            ServerError: As :meth:`update`, or there is no room for all new ones.
        """
        planned = [self.plan(change) for change in wanted]
        self._check_room(sum(each.group_name not in self._configs for each in planned))
        return planned

    def update(self, wanted: GroupChange | GroupConfig, *, by: str = "") -> GroupConfig:
        """Create or change a group; fields that a :class:`GroupChange` omits are kept.

        Args:
            wanted: The group; keys of its attributes are signed, ``+k`` or ``-k``.
            by: The client, for the log.

        Raises:
            InvalidParameter: The name or a number is not allowed.
            ServerError: An attribute is not allowed.
        """
        config = self.plan(wanted)
        self.auto.remove(wanted.group_name)
        self._store(config, by)
        return config

    def delete(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Delete a group; return its configuration, None if there was none.

        Raises:
            InvalidParameter: The name is not legal, or the system needs the group.
        """
        if problem := names.group_problem(group):
            raise InvalidParameter(problem)
        check_deletion(group)
        return self.discard(group, by=by)

    def discard(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Delete a group with any name; return its configuration, None if there was none."""
        self.auto.remove(group)
        config = self._configs.pop(group, None)
        if config is not None:
            self._forbidden.pop(group, None)
            self._known_ms = self._clock.now_ms()
            logger.info("group deleted: group=%s by=%s %s", group, by or "broker", _unusual(config))
            self._note_change(group)
        return config

    def forbid_reading(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid or allow a group to read a topic."""
        bits = self._forbidden.get(group, {}).get(topic, 0)
        flag = 1 << FORBIDDEN_READ_BIT
        wanted = bits | flag if forbidden else bits & ~flag
        if wanted == bits:
            return
        self.auto.remove(group)
        row = self._forbidden.setdefault(group, {})
        row[topic] = wanted
        if not wanted:
            del row[topic]
        if not row:
            del self._forbidden[group]
        self._note_change(group)

    def may_read(self, group: str, topic: str) -> bool:
        """Tell whether the group may read the topic: no administrator has forbidden it."""
        row = self._forbidden.get(group)
        return row is None or not row.get(topic, 0) >> FORBIDDEN_READ_BIT & 1

    def body(self) -> GroupTableBody:
        """Return the table as slaves and tools read it."""
        return GroupTableBody(
            data_version=self.version,
            forbidden_table=self._forbidden,
            subscription_group_table=self._configs,
        )

    def follow(self, master: GroupTableBody, *, gone: Iterable[str] | None = None) -> None:
        """Apply the table of the master, with its version.

        Args:
            master: All its groups, or those that have changed; always all forbidden topics.
            gone: Groups that it has deleted; None if groups that it lacks are to be removed, except
                those of RocketMQ's own tools.
        """
        wanted: dict[str, GroupConfig] = {}
        for name, config in master.subscription_group_table.items():
            if not name:  # see load()
                continue
            if problem := names.group_problem(name):
                logger.warning("group of the master is left out: reason=%s", problem)
            else:
                wanted[name] = msgspec.structs.replace(config, group_name=name)
        if gone is None:
            kept = wanted.keys() | names.SYSTEM_GROUPS
            gone = [each for each in self._configs if each not in kept]
        for group in gone:
            self.auto.remove(group)
            if self._configs.pop(group, None) is not None:
                logger.info("group deleted: group=%s by=the master", group)
                self._note_change(group)
        for name, config in wanted.items():
            if self._configs.get(name) != config:
                self._put(config, "the master")
        if self.version != master.data_version or self._forbidden != master.forbidden_table:
            self._forbidden = master.forbidden_table
            self.version = master.data_version
            self.revision += 1
        self._known_ms = max(self._known_ms, self.version.timestamp)

    def to_json(self) -> bytes:
        """Return the text of ``subscriptionGroup.json``."""
        return msgspec.json.format(encode_group_table(self.body()), indent=2)

    def load(self, data: bytes) -> None:
        """Load the table from ``subscriptionGroup.json``; illegal names are refused.

        A group without a name is left out: RocketMQ's broker makes one when a request lacks it.

        Raises:
            StoreError: The text is not a group table.
        """
        try:
            body = decode_group_table(data)
        except RemoteProtocolError as error:
            raise StoreError(f"subscriptionGroup.json cannot be read: {error}") from None
        for name, config in body.subscription_group_table.items():
            if not name:
                continue
            if problem := names.group_problem(name):
                raise StoreError(f"subscriptionGroup.json cannot be used: {problem}")
            self._configs[name] = msgspec.structs.replace(config, group_name=name)
            if problem := _without_effect(config):
                logger.warning("group setting without effect: group=%s reason=%s", name, problem)
        self._forbidden = body.forbidden_table
        self.version = body.data_version
        self._known_ms = self.version.timestamp

    def _may_create(self, group: str) -> bool:
        if names.is_system_group(group):
            return names.group_problem(group) is None
        return self.auto_create and names.group_problem(group) is None

    def _store(self, config: GroupConfig, by: str) -> None:
        name = config.group_name
        if self._configs.get(name) == config:
            return
        self._check_room(name not in self._configs)
        self._put(config, by)

    def _check_room(self, more: int) -> None:
        if more and len(self._configs) + more > GROUP_COUNT_MAX:
            raise ServerError(
                f"this broker has {len(self._configs)} groups and accepts no more than "
                f"{GROUP_COUNT_MAX}"
            )

    def _put(self, config: GroupConfig, by: str) -> None:
        _log_change(self._configs.get(config.group_name), config, by)
        self._configs[config.group_name] = config
        self._note_change(config.group_name)

    def _note_change(self, group: str) -> None:
        self._policies.pop(group, None)
        self.version = self.version.next(self._clock.now_ms())
        self.revision += 1
        if self.on_change is not None:
            self.on_change(group)


def group_not_exist(group: str) -> GroupNotExist:
    """Return the refusal for an unknown group that may not be created by use."""
    if problem := names.group_problem(group):
        return GroupNotExist(problem)
    return GroupNotExist(
        f"the group {group!r} does not exist on this broker; create it with mqadmin "
        "updateSubGroup or set autoCreateSubscriptionGroup=true"
    )


def _without_effect(config: GroupConfig) -> str | None:
    """Return why a field of a group's configuration would have no effect, or None."""
    for key, broker_id in (
        ("brokerId", config.broker_id),
        ("whichBrokerWhenConsumeSlowly", config.which_broker_when_consume_slowly),
    ):
        if broker_id < 0:
            return f"{key}={broker_id} cannot be honoured: ids of brokers begin at 0, the master"
    if config.consume_timeout_minute != _CONSUME_MINUTES:
        return (
            f"consumeTimeoutMinute={config.consume_timeout_minute} cannot be honoured: no broker "
            "or client of RocketMQ reads it; set consumeTimeout of the consumers (consume_timeout)"
        )
    return None


def _check_policy_size(policy: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(policy))
    except RecursionError:
        size = _POLICY_BYTES_MAX + 1
    if size > _POLICY_BYTES_MAX:
        raise InvalidParameter(f"groupRetryPolicy takes more than {_POLICY_BYTES_MAX} bytes")


def _check(wanted: GroupConfig, before: GroupConfig | None, *, timed: bool) -> None:
    if problem := names.group_problem(wanted.group_name):
        raise InvalidParameter(problem)
    for key, value, low, high in (
        ("retryQueueNums", wanted.retry_queue_nums, 0, QUEUE_COUNT_MAX),
        ("retryMaxTimes", wanted.retry_max_times, -1, _INT32_MAX),
        ("groupSysFlag", wanted.group_sys_flag, 0, 1),
    ):
        if not low <= value <= high:
            raise InvalidParameter(f"{key}={value} must be between {low} and {high}")
    problem = _without_effect(wanted)
    # A value from another broker's store does not prevent other changes.
    if problem is not None and (before is None or _without_effect(before) != problem):
        raise InvalidParameter(problem)
    _check_policy_size(wanted.group_retry_policy)
    try:
        policy = read_retry_policy(wanted.group_retry_policy)
    except ConfigError as error:
        raise InvalidParameter(str(error)) from None
    if policy is not None and not timed:
        raise InvalidParameter(
            "groupRetryPolicy needs timed messages, and timerWheelEnable is false on this "
            "broker; without a policy, messages are retried by the delay levels"
        )


def _log_change(before: GroupConfig | None, after: GroupConfig, by: str) -> None:
    name = after.group_name
    if before is not None:
        changes = " ".join(map(str, differences(before, after)))
        logger.info("group changed: group=%s by=%s %s", name, by or "broker", changes)
    elif by or not names.is_system_group(name):
        logger.info("group created: group=%s by=%s %s", name, by or "broker", _unusual(after))


def _unusual(config: GroupConfig) -> str:
    """Return the fields of a configuration that differ from those of a new group."""
    usual = GroupConfig(group_name=config.group_name)
    changed = differences(usual, config)
    return (
        " ".join(f"{each.name}={value_text(each.after)}" for each in changed)
        or "with default settings"
    )
