"""Changes of groups on several brokers: planned, checked for losses, then applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from rocketpost.admin.attribute_changes import attribute_values, merge_attributes
from rocketpost.admin.command import errors_from
from rocketpost.admin.losses import group_losses, has_retention_hold
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.model.changes import apply
from rocketpost.model.group import GroupChange, GroupConfig

NEW_GROUP: Final = GroupConfig(consume_from_min_enable=False, consume_broadcast_enable=False)
"""Configuration that ``updateSubGroup`` gives a new group, as RocketMQ's does."""
_TOPICS_NAMED_MAX: Final = 10


class PlannedGroup(NamedTuple):
    """A group on one broker before and after a change; ``before`` is None for a new group."""

    address: str
    before: GroupConfig | None
    after: GroupConfig
    losses: list[str]


async def plan_groups(
    admin: AdminClient,
    masters: Sequence[str],
    changes: Sequence[GroupChange],
    *,
    defaults: GroupConfig,
) -> list[PlannedGroup]:
    """Return planned changes with the losses that they cause; ``defaults`` are for new groups."""
    plans = []
    for address in masters:
        with errors_from(address):
            table = (await admin.groups.table(address)).subscription_group_table
        for change in changes:
            before = table.get(change.group_name)
            after = _merge_group(address, before or defaults, change)
            where = f"{change.group_name} at {address}"
            losses = [f"{where}: {loss}" for loss in group_losses(before, after)]
            plans.append(PlannedGroup(address, before, after, losses))
    return plans


def _merge_group(address: str, base: GroupConfig, change: GroupChange) -> GroupConfig:
    attributes = merge_attributes(
        address, f"group {change.group_name}", base.attributes, change.attributes
    )
    return msgspec.structs.replace(apply(change, base), attributes=attributes)


async def apply_group_change(admin: AdminClient, planned: PlannedGroup) -> None:
    """Create or change a group on its broker."""
    address, before, after, _ = planned
    with errors_from(address):
        if before is None:
            await admin.groups.create(address, after)
            return
        members = msgspec.structs.asdict(after)
        del members["group_name"]
        members["attributes"] = attribute_values(before.attributes, after.attributes)
        await admin.groups.update(address, after.group_name, **members)


async def deletion_losses(
    admin: AdminClient, address: str, group: str, *, offsets: bool
) -> list[str]:
    """Return the losses that the deletion of a group on a broker causes."""
    losses = []
    with errors_from(address):
        config = (await admin.groups.table(address)).subscription_group_table.get(group)
        if config is not None and has_retention_hold(config):
            losses.append("messages may expire before the group has consumed them")
        if offsets and (topics := await admin.groups.topics_of(address, group)):
            more = " and more" if len(topics) > _TOPICS_NAMED_MAX else ""
            named = ", ".join(sorted(topics)[:_TOPICS_NAMED_MAX])
            losses.append(f"this deletes the offsets of the group in {named}{more}")
        try:
            members = (await admin.groups.connections(group, address)).connection_set
            losses.append(f"{len(members)} consumers of the group are connected")
        except ConsumerNotOnline:
            pass
    return [f"{group} at {address}: {loss}" for loss in losses]


def report_group_change(report: Report, planned: PlannedGroup, *, listed: bool = False) -> None:
    """Report the change of a group on a broker; ``listed`` if the group is one of a list."""
    address, before, after, _ = planned
    report.change(
        "subscription group", address, before, after, listed=listed, group=after.group_name
    )
