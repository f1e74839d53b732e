"""Messages that a consumer sends back: retried later, or moved to the dead letters.

A message is retried in ``%RETRY%group`` after a delay that grows with each round: level 3 plus the
rounds so far, unless the consumer names a level or the group has a retry policy. A delay from a
policy makes it a timed message. After the last round, or at level -1, the message is stored in
``%DLQ%group``. The copy keeps everything of the original, counts the round, and names the topic and
the message id of the first delivery, and the last failure if the consumer reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.delay.service import delayed_draft
from rocketpost.broker.group.table import group_not_exist
from rocketpost.broker.own_state import check_send_back
from rocketpost.codec.faults import NoPermission, ServerError
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.properties import with_failure, without_failure
from rocketpost.codec.record import Record
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.failure import ConsumeFailure, make_failure
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import dlq_topic, retry_topic
from rocketpost.model.retry_policy import RetryPolicy
from rocketpost.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Draft

FIRST_LEVEL: Final = 3
VERSION_MAX_RECONSUME: Final = 121
"""3.4.9: newer clients send their maximum number of retries."""


class Topics(Protocol):
    """The part of the topic table that retries use."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...

    def create_internal(
        self, topic: str, *, queue_nums: int, order: bool = False, unit: bool = False
    ) -> TopicConfig:
        """Return a retry or dead-letter topic, created if need be."""
        ...


class Groups(Protocol):
    """The part of the group table that retries use."""

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Return the configuration of ``group``; None when it is unknown and may not be created."""
        ...

    def use(self, group: str) -> None:
        """Note that a message waits for ``group``, so the group must not expire."""
        ...

    def retry_policy(self, group: str) -> RetryPolicy | None:
        """Return the retry delays of a group; None for the delay levels."""
        ...


class _Wait(NamedTuple):
    """Delay of a message: a delay level (0 for none) or a time."""

    level: int = 0
    ms: int | None = None


class RetryService:
    """Makes the copies to store of messages that are sent back.

    Args:
        record_at: Finds the message by its position.
        random_below: Picks a queue of the retry topic.
        level_max: The highest delay level.
        put_off: Makes a message a timed one with a delay in milliseconds.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        record_at: Callable[[int], Record | None],
        store_host: bytes,
        random_below: Callable[[int], int],
        level_max: int,
        put_off: Callable[[Draft, int], Draft],
    ) -> None:
        self._put_off = put_off
        self._topics = topics
        self._groups = groups
        self._record_at = record_at
        self._store_host = store_host
        self._random_below = random_below
        self._level_max = level_max

    def draft(
        self, header: SendBackHeader, *, client_version: int, broker_writable: bool, by: str = ""
    ) -> Draft | None:
        """Return the copy to store; None if the group wants no retries.

        Args:
            header: The request.
            client_version: RocketMQ's number of the client's version.
            broker_writable: Whether this broker accepts messages.
            by: The client, for the log if the group has to be created.

        Raises:
            Fault: The message cannot be taken back.
        """
        group = self._groups.find_or_create(header.group, by=by)
        if group is None:
            raise group_not_exist(header.group)
        if not broker_writable:
            raise NoPermission("this broker is not writable")
        if group.retry_queue_nums <= 0:
            return None
        retry = self._topic(retry_topic(header.group), group.retry_queue_nums, header.unit_mode)
        if not retry.writable:
            raise NoPermission(f"the topic {retry.topic_name} is not writable")
        record = self._record_at(header.offset)
        if record is None:
            raise ServerError(f"there is no message at position {header.offset}")
        check_send_back(record.topic)
        why = make_failure(header.failure_kind, header.failure_text)
        limit = group.retry_max_times
        if client_version >= VERSION_MAX_RECONSUME and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        if record.reconsume_times >= limit or header.delay_level < 0:
            dead = self._topic(dlq_topic(header.group), 1, unit=False)
            return self._copy(record, dead.topic_name, 0, _Wait(), why)
        count = max(1, min(group.retry_queue_nums, retry.write_queue_nums))
        wait = self._wait(header, record.reconsume_times)
        copy = self._copy(record, retry.topic_name, self._random_below(count), wait, why)
        self._groups.use(header.group)
        return copy

    def _wait(self, header: SendBackHeader, times: int) -> _Wait:
        if header.delay_level:
            return _Wait(level=header.delay_level)
        policy = self._groups.retry_policy(header.group)
        if policy is None:
            return _Wait(level=FIRST_LEVEL + times)
        return _Wait(ms=policy.delay_ms(times))

    def _topic(self, topic: str, queue_nums: int, unit: bool) -> TopicConfig:
        found = self._topics.find(topic)
        if found is not None:
            return found
        return self._topics.create_internal(topic, queue_nums=queue_nums, unit=unit)

    def _copy(
        self,
        record: Record,
        topic: str,
        queue_id: int,
        wait: _Wait,
        why: ConsumeFailure | None,
    ) -> Draft:
        properties = without_failure(record.properties)
        properties.setdefault(names.RETRY_TOPIC, record.topic)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, record.message_id)
        properties[names.WAIT_STORE] = "false"
        if wait.ms is None:
            properties[names.DELAY_LEVEL] = str(wait.level)
        else:
            properties.pop(names.DELAY_LEVEL, None)
        sys_flag = record.sys_flag
        if sys_flag & TRANSACTION_PREPARED:
            sys_flag &= ~TRANSACTION_MASK
        try:
            draft = Draft.copy_of(
                record,
                topic=topic,
                queue_id=queue_id,
                store_host=self._store_host,
                sys_flag=sys_flag,
                reconsume_times=record.reconsume_times + 1,
                properties=with_failure(properties, why),
            )
            if wait.ms is not None:
                return self._put_off(draft, wait.ms)
            return (
                delayed_draft(draft, wait.level, level_max=self._level_max) if wait.level else draft
            )
        except LocalProtocolError as error:
            raise ServerError(f"the message cannot be stored again: {error}") from None
