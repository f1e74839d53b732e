"""Changes of topics on several brokers: planned, checked for losses, then applied."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final, NamedTuple

import msgspec

from rocketpost.admin.attribute_changes import attribute_values, merge_attributes
from rocketpost.admin.command import Failure, errors_from
from rocketpost.admin.losses import topic_losses
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import TopicNotExist
from rocketpost.model.changes import apply
from rocketpost.model.topic import TopicChange, TopicConfig

QUEUES: Final = 8
"""Number of queues that ``updateTopic`` gives a new topic, as RocketMQ's does."""
LISTED_QUEUES: Final = 16
"""Number of queues that ``updateTopicList`` gives a new topic, as RocketMQ's does."""

_QUEUES_MAX: Final = 65_536


class PlannedTopic(NamedTuple):
    """A topic on one broker before and after a change; ``before`` is None for a new topic."""

    address: str
    before: TopicConfig | None
    after: TopicConfig
    losses: list[str]

    @property
    def is_change(self) -> bool:
        """Whether the configuration changes."""
        return self.before != self.after


async def find_topic(admin: AdminClient, address: str, topic: str) -> TopicConfig | None:
    """Return a topic's configuration on a broker, or None."""
    with errors_from(address):
        try:
            return await admin.topics.config(address, topic)
        except TopicNotExist:
            return None


def merge_topic(
    address: str, before: TopicConfig | None, change: TopicChange, *, queues: int = QUEUES
) -> TopicConfig:
    """Return a topic after a change. Values that the change leaves out stay, or have defaults.

    Args:
        address: The broker, for error messages.
        before: The present configuration, None for a new topic.
        change: The values to change.
        queues: The default number of queues of a new topic.

    Raises:
        Failure: The change removes an attribute that is not set.
    """
    base = before or _default_topic(change, queues)
    attributes = merge_attributes(
        address, f"topic {change.topic_name}", base.attributes, change.attributes
    )
    return msgspec.structs.replace(apply(change, base), attributes=attributes)


def _default_topic(change: TopicChange, queues: int) -> TopicConfig:
    """Return the defaults of a new topic: as many queues to read as to write."""
    count = change.read_queue_nums or change.write_queue_nums or queues
    return TopicConfig(read_queue_nums=count, write_queue_nums=change.write_queue_nums or count)


async def plan_topic(
    admin: AdminClient, address: str, before: TopicConfig | None, after: TopicConfig
) -> PlannedTopic:
    """Return a planned change with the losses that it causes."""
    hidden = None
    if before is not None:
        with errors_from(address):
            hidden = await admin.topics.hidden_by(address, before, after)
    where = f"{after.topic_name} at {address}"
    losses = [f"{where}: {loss}" for loss in topic_losses(before, after, hidden)]
    return PlannedTopic(address, before, after, losses)


async def apply_topic_change(admin: AdminClient, planned: PlannedTopic, *, force: bool) -> None:
    """Create or change a topic on its broker."""
    address, before, after, _ = planned
    with errors_from(address):
        if before is None:
            await admin.topics.create(address, after)
        else:
            await admin.topics.update(
                address,
                after.topic_name,
                read_queue_nums=after.read_queue_nums,
                write_queue_nums=after.write_queue_nums,
                perm=after.perm,
                order=after.order,
                topic_sys_flag=after.topic_sys_flag,
                attributes=attribute_values(before.attributes, after.attributes),
                force=force,
            )


def report_topic_change(report: Report, planned: PlannedTopic, *, listed: bool = False) -> None:
    """Report the change of a topic on a broker; ``listed`` if the topic is one of a list."""
    address, before, after, _ = planned
    report.change("topic", address, before, after, listed=listed, topic=after.topic_name)


def check_order(topic: str, value: str, known: Set[str]) -> None:
    """Check an order configuration: clients skip parts of another form without a word.

    Args:
        topic: The topic, for error messages.
        value: The new configuration.
        known: The names of the brokers that may be in it.

    Raises:
        Failure: It is not ``name:number;...``, or names another broker.
    """
    names: set[str] = set()
    for part in value.removesuffix(";").split(";"):
        name, _, count = part.partition(":")
        if not name or not re.fullmatch("[0-9]{1,5}", count) or not 1 <= int(count) <= _QUEUES_MAX:
            raise Failure(
                f"nothing was changed: {part!r} is not broker:number with a number from 1 to "
                f"{_QUEUES_MAX}, as in broker-a:4;broker-b:4"
            )
        if name not in known:
            brokers = ", ".join(sorted(known)) or "none"
            raise Failure(
                f"nothing was changed: the topic {topic} is not on a broker {name}; its brokers "
                f"are: {brokers}"
            )
        if name in names:
            raise Failure(f"nothing was changed: {name} is there twice")
        names.add(name)
