"""Changes of topics on several brokers: read, merged with what is wanted, judged, then made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from rocketpost.admin.command import Failure, asking
from rocketpost.admin.losses import topic_losses
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.changes import changed_attributes
from rocketpost.codec.faults import TopicNotExist
from rocketpost.model.changes import apply, differences
from rocketpost.model.topic import TopicChange, TopicConfig

QUEUES: Final = 8
"""Number of queues that ``updateTopic`` gives a new topic, as RocketMQ's does."""
LISTED_QUEUES: Final = 16
"""Number of queues that ``updateTopicList`` gives a new topic, as RocketMQ's does."""


class Planned(NamedTuple):
    """A topic of one broker before and after; ``before`` is None if it is new."""

    address: str
    before: TopicConfig | None
    after: TopicConfig
    losses: list[str]

    @property
    def is_change(self) -> bool:
        """Whether anything has to be done."""
        return self.before != self.after


async def find_topic(admin: AdminClient, address: str, topic: str) -> TopicConfig | None:
    """Return a topic's configuration on a broker, or None."""
    with asking(address):
        try:
            return await admin.topics.config(address, topic)
        except TopicNotExist:
            return None


def merged(
    address: str, before: TopicConfig | None, change: TopicChange, *, queues: int = QUEUES
) -> TopicConfig:
    """Return a topic as it is wanted: what a change leaves out stays, or is usual for new ones.

    Args:
        address: The broker, for what may be wrong.
        before: The topic as it is, None if it is new.
        change: What is wanted of it.
        queues: How many queues a new one has unless told otherwise.

    Raises:
        Failure: An attribute is to be removed that is not set.
    """
    base = before or _usual(change, queues)
    wanted = {
        name[1:]: None if name.startswith("-") else value
        for name, value in change.attributes.items()
    }
    for name, value in wanted.items():
        if value is None and name not in base.attributes:
            raise Failure(
                f"{address}: the attribute {name} of the topic {change.topic_name} is not set, so "
                "it cannot be removed"
            )
    return msgspec.structs.replace(
        apply(change, base), attributes=changed_attributes(base.attributes, wanted)
    )


def _usual(change: TopicChange, queues: int) -> TopicConfig:
    """Return what a new topic has unless told otherwise: as many queues to read as to write."""
    count = change.read_queue_nums or change.write_queue_nums or queues
    return TopicConfig(read_queue_nums=count, write_queue_nums=change.write_queue_nums or count)


async def plan_topic(
    admin: AdminClient, address: str, before: TopicConfig | None, after: TopicConfig
) -> Planned:
    """Return a change with what it takes away."""
    hidden = None
    if before is not None:
        with asking(address):
            hidden = await admin.topics.hidden_by(address, before, after)
    where = f"{after.topic_name} at {address}"
    losses = [f"{where}: {loss}" for loss in topic_losses(before, after, hidden)]
    return Planned(address, before, after, losses)


async def make_change(admin: AdminClient, planned: Planned, *, force: bool) -> None:
    """Create or change a topic on its broker."""
    address, before, after, _ = planned
    with asking(address):
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
                attributes=_attribute_values(before.attributes, after.attributes),
                force=force,
            )


def _attribute_values(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    return {name: after.get(name) for name in before.keys() | after.keys()}


def tell_change(report: Report, planned: Planned, *, listed: bool = False) -> None:
    """Report what became of a topic on a broker, in RocketMQ's words if it is new.

    Args:
        report: Who is told.
        planned: The change that was made.
        listed: Whether it is one of several.
    """
    address, before, after, _ = planned
    action, what = "created", "created"
    text = f"create topic to {address} success."
    if before is not None:
        changes = ", ".join(map(str, differences(before, after)))
        action = "changed" if changes else "unchanged"
        what = changes or "as it was"
        text = f"change topic at {address} success: {what}."
    report.step(
        f"  {after.topic_name}: {what}" if listed else text,
        broker=address,
        topic=after.topic_name,
        action=action,
        before=before,
        after=after,
    )
