"""Descriptions of the losses that a change of a topic, a group or a setting causes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketpost.model.group import GroupConfig
from rocketpost.model.shrinking import hidden_messages
from rocketpost.model.topic import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig

_RIGHTS: Final = (
    (PERM_WRITE, "producers may no longer send to it"),
    (PERM_READ, "consumers may no longer read it"),
    (PERM_INHERIT, "new topics may no longer be modelled on it"),
)
_HOLD: Final = "retention.hold"
_RESERVED: Final = "fileReservedTime"
_PERMISSION: Final = "brokerPermission"


def topic_losses(
    before: TopicConfig | None, after: TopicConfig, hidden: str | None = None
) -> list[str]:
    """Return the losses that a change of a topic causes.

    Args:
        before: The present configuration, None for a new topic.
        after: The new configuration.
        hidden: A description of the messages that the change hides, if any.
    """
    unread_before = before is not None and before.write_queue_nums > before.read_queue_nums
    if hidden is None and not unread_before:
        hidden = hidden_messages(before, after, [])
    losses = [hidden] if hidden else []
    if before is None:
        return losses
    lost = before.perm & ~after.perm
    losses += [
        f"{text} (perm {before.perm} -> {after.perm})" for bit, text in _RIGHTS if lost & bit
    ]
    if before.order and not after.order:
        losses.append("it is no longer an ordered topic")
    return losses + _describe_removed(before.attributes, after.attributes)


def group_losses(before: GroupConfig | None, after: GroupConfig) -> list[str]:
    """Return the losses that a change of a group causes; ``before`` is None for a new group."""
    if before is None:
        return []
    losses = [
        text
        for had, has, text in (
            (before.consume_enable, after.consume_enable, "the group may no longer consume"),
            (
                before.consume_broadcast_enable,
                after.consume_broadcast_enable,
                "its members may no longer consume as broadcasters",
            ),
            (
                before.retry_queue_nums > 0,
                after.retry_queue_nums > 0,
                "messages that it fails to handle are no longer retried",
            ),
            (
                has_retention_hold(before),
                has_retention_hold(after),
                "messages may expire before the group has consumed them",
            ),
        )
        if had and not has
    ]
    removed = {name: value for name, value in before.attributes.items() if name != _HOLD}
    return losses + _describe_removed(removed, after.attributes)


def has_retention_hold(config: GroupConfig) -> bool:
    """Return whether messages expire only after the group has consumed them."""
    return config.attributes.get(_HOLD) == "true"


def order_losses(before: str | None, after: str | None) -> list[str]:
    """Return the losses that a change of a topic's order configuration causes."""
    had, has = order_queues(before), order_queues(after)
    return [
        f"{broker} has {has.get(broker, 0)} instead of {count} queues in the order configuration"
        for broker, count in had.items()
        if has.get(broker, 0) < count
    ]


def order_queues(text: str | None) -> dict[str, int]:
    """Return the queues of each broker in an order configuration, without parts of another form."""
    pairs = [part.partition(":") for part in (text or "").split(";") if part]
    return {broker: int(count) for broker, _, count in pairs if count.isdecimal()}


def can_cause_losses(key: str) -> bool:
    """Return whether a change of this setting can cause losses; see :func:`setting_losses`."""
    return key in (_RESERVED, _PERMISSION)


def setting_losses(key: str, before: str | None, after: str) -> list[str]:
    """Return the losses that a change of a broker's setting causes.

    Values that are not numbers cause none: the broker refuses them.
    """
    if before is None or not before.isdecimal() or not after.isdecimal():
        return []
    if key == _RESERVED and int(after) < int(before):
        return [f"messages expire after {after} instead of {before} hours"]
    if key == _PERMISSION:
        lost = int(before) & ~int(after)
        rights = ((PERM_WRITE, "producers may no longer send"), (PERM_READ, "nobody may read"))
        return [f"{text} (perm {before} -> {after})" for bit, text in rights if lost & bit]
    return []


def _describe_removed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"this removes the attribute {name}={value}"
        for name, value in before.items()
        if name not in after
    ]
