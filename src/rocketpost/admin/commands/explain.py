"""The command ``explain``: where a message is stored, and its fate in every group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import Failure, admin_command, json_option, say, say_json
from rocketpost.admin.render import time_text_ms
from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.faults import NoMessage
from rocketpost.diagnosis.explanation import Explanation, explain_message, find_indexed
from rocketpost.diagnosis.fate import Fate
from rocketpost.diagnosis.losses import (
    Loss,
    find_losses,
    find_lost_message,
    list_topics_of_group,
)
from rocketpost.diagnosis.replicas import GroupCopies, ReplicaCopy
from rocketpost.errors import RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text
from rocketpost.model.route import MASTER_ID, MessageQueue

UNKNOWN: Final = "unknown here"
_is_offset_id = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})").fullmatch
_LINE: Final = "{:<16} {}"


@admin_command("explain", is_watchable=True)
@click.argument("name", metavar="[MESSAGE]", required=False)
@click.option("-t", "--topic", "topic", help="Its topic; an offset id needs none.")
@click.option("-b", "--brokerName", "broker", help="With -t, -i and -o: name of the broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="With -b: the queue.")
@click.option("-o", "--offset", type=click.IntRange(0), help="With -b: its place in the queue.")
@click.option("-g", "--groupName", "group", help="Without MESSAGE: what its topics have lost.")
@json_option
async def explain(
    admin: AdminClient,
    *,
    name: str | None,
    topic: str | None,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str | None,
    as_json: bool,
) -> None:
    """Tell where a message is and what became of it in every group.

    MESSAGE is an id of either kind or a key. Without it, -t -b -i -o name its place; -t or -g alone
    tell which messages of a topic, or of the topics of a group, were lost to damage on a disk.
    """
    place = (broker, queue_id, offset)
    if name is not None:
        if place != (None, None, None) or group is not None:
            raise click.UsageError("give MESSAGE, or its place with -b -i -o, or -g, not both")
        messages = await find(admin, name, topic)
    elif place == (None, None, None) and (topic is None) != (group is None):
        await explain_losses(admin, topic, group, as_json=as_json)
        return
    elif topic is None or broker is None or queue_id is None or offset is None or group is not None:
        raise click.UsageError("give MESSAGE, or all of -t -b -i -o, or -t or -g alone")
    else:
        queue = MessageQueue(broker, queue_id, topic)
        try:
            messages = [await admin.messages.by_offset(queue, offset)]
        except NoMessage:
            loss = await find_lost_message(admin, queue, offset)
            if loss is None:
                raise
            say_json([loss_members(loss)]) if as_json else say(loss_text(loss))
            return
    explanations = [await explain_message(admin, message) for message in messages]
    if as_json:
        say_json([explanation_members(each) for each in explanations])
    else:
        say("\n\n".join(explanation_text(each) for each in explanations))


async def explain_losses(
    admin: AdminClient, topic: str | None, group: str | None, *, as_json: bool
) -> None:
    """Print the messages of a topic, or of the topics of a group, that were lost to damage.

    Raises:
        Failure: No broker is registered.
        RouteNotFound: No name server knows the topic.
        GroupNotExist: No broker knows the group.
    """
    await require_brokers(admin)
    if topic is not None:
        await admin.cluster.route(topic)  # an unknown topic is an error
        topics = [topic]
    else:
        topics = await list_topics_of_group(admin, group or "")
    losses = list(
        dict.fromkeys([loss for each in topics for loss in await find_losses(admin, each)])
    )
    if as_json:
        say_json([loss_members(loss) for loss in losses])
    elif losses:
        say("\n".join(map(loss_text, losses)))
    else:
        say(f"no message of {', '.join(topics) or 'any topic of the group'} is known to be lost")


async def find(admin: AdminClient, name: str, topic: str | None) -> list[ReceivedMessage]:
    """Return the messages with an id or a key, oldest first.

    Raises:
        NoMessage: There is none.
        Failure: The name is not an offset id, and no topic is given.
    """
    if topic is not None:
        found = await find_indexed(admin, topic, name)
        if found:
            return sorted(found, key=lambda each: each.store_ms)
    if _is_offset_id(name) and topic is None:
        try:
            return [await admin.messages.by_offset_id(name)]
        except RocketpostError as error:
            raise Failure(
                f"no broker has a message with the offset id {name} ({error}); if it is an id "
                "that the sender made, add -t TOPIC"
            ) from error
    if topic is None:
        raise Failure(f"{name} is not an offset id; add -t TOPIC to look it up as an id or a key")
    if _is_offset_id(name):
        return [await admin.messages.by_id(topic, name)]
    losses = await find_losses(admin, topic)
    hint = f"; {len(losses)} of its messages were lost to damage: explain -t {topic}"
    raise NoMessage(
        f"no message of the topic {topic} has the id or the key {name}{hint if losses else ''}"
    )


# Text and values.


def explanation_text(explanation: Explanation) -> str:
    """Return an explanation for people."""
    message, stored_at = explanation.message, explanation.stored_at
    indexed = {True: "yes", False: "no", None: UNKNOWN}[stored_at.indexed]
    lines = [
        ("Message", message.message_id),
        ("Offset ID", message.offset_id),
        ("Topic", message.record.topic),
        ("Tags / keys", f"{message.tags or '-'} / {' '.join(message.keys) or '-'}"),
        (
            "Queue",
            f"{stored_at.broker_name or stored_at.address}, queue {message.record.queue_id}, "
            f"offset {message.queue_offset}",
        ),
        ("Commit log", f"position {stored_at.position}, {stored_at.size} bytes"),
        ("File", stored_at.file or UNKNOWN),
        *_group_lines(explanation.group),
        *_replica_lines(explanation.replicas),
        ("Indexed", indexed),
        ("Born", f"{time_text_ms(message.born_ms)} at {host_text(message.born_host)}"),
        ("Stored", f"{time_text_ms(message.store_ms)} at {host_text(message.store_host)}"),
    ]
    if message.reconsume_times:
        lines.append(("Delivered before", f"{message.reconsume_times} times"))
    origin = message.properties.get(names.ORIGIN_MESSAGE_ID)
    if origin:
        lines.append(("Copy of", f"{origin} in {message.properties.get(names.RETRY_TOPIC)}"))
    if explanation.delayed_until_ms is not None:
        real = message.properties.get(names.REAL_TOPIC, UNKNOWN)
        lines.append(("Delayed until", f"{time_text_ms(explanation.delayed_until_ms)}, for {real}"))
    shown = [_LINE.format(f"{name}:", value) for name, value in lines]
    if not explanation.fates:
        shown.append(_LINE.format("Groups:", "none has offsets or members for this topic"))
    return "\n".join([*shown, *(fate_text(fate) for fate in explanation.fates)])


def _group_lines(group: GroupCopies | None) -> list[tuple[str, str]]:
    """Return a line about the group of brokers that has the message, if it is in one."""
    if group is None:
        return []
    agreed = "committed" if group.committed else "not committed yet"
    text = f"{agreed} by {group.group}, on {', '.join(group.members) or 'no member for certain'}"
    if group.others:
        text += f"; not on {', '.join(group.others)}, as far as {group.leader or 'it'} knows"
    return [("Group of brokers", text)]


def _replica_lines(replicas: Sequence[ReplicaCopy]) -> list[tuple[str, str]]:
    """Return a line for each replica; none for a master without slaves that has the message."""
    if [(each.broker_id, each.present) for each in replicas] == [(MASTER_ID, True)]:
        return []
    found = {True: "has it", False: "does not have it", None: UNKNOWN}
    return [
        (
            "Master" if each.broker_id == MASTER_ID else f"Slave {each.broker_id}",
            f"{each.address} {found[each.present]}" + (f": {each.reason}" if each.reason else ""),
        )
        for each in replicas
    ]


def fate_text(fate: Fate) -> str:
    """Return the fate of the message in a group: a line, and indented details below it."""
    when = ""
    if fate.until_ms is not None:
        when = f" until {time_text_ms(fate.until_ms)}"
    if fate.dead_ms is not None:
        when = f" since {time_text_ms(fate.dead_ms)}"
    lines = [f"group {fate.group}: {fate.state.value}{when}: {fate.reason}"]
    if fate.copy is not None:
        copy = fate.copy
        lines.append(
            f"    copy {copy.offset_id} in {copy.topic}, {copy.broker_name}, "
            f"queue {copy.queue_id}, offset {copy.queue_offset}"
        )
    if fate.members:
        lines.append(f"    {fate.members} member{'s' * (fate.members > 1)} online")
    else:
        lines.append("    nobody is online")
    for owner in fate.owners:
        held = f"queue is with {owner.client_id}"
        if owner.cached_count:
            held += f", which holds offsets {owner.cached_first} to {owner.cached_last}"
        if owner.locked:
            held += f"; locked by it, renewed {time_text_ms(owner.lock_ms)}"
        lines.append(f"    {held}")
    lines += [f"    {UNKNOWN}: {what}" for what in fate.unknown]
    return "\n".join(lines)


def explanation_members(explanation: Explanation) -> dict[str, object]:
    """Return an explanation for programs."""
    message = explanation.message
    return {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_id,
        "topic": message.record.topic,
        "tags": message.tags,
        "keys": message.keys,
        "queueId": message.record.queue_id,
        "queueOffset": message.queue_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_ms,
        "bornHost": host_text(message.born_host),
        "storeTimestamp": message.store_ms,
        "storeHost": host_text(message.store_host),
        "originMsgId": message.properties.get(names.ORIGIN_MESSAGE_ID),
        "delayedUntil": explanation.delayed_until_ms,
        "place": msgspec.to_builtins(explanation.stored_at),
        "replicas": msgspec.to_builtins(explanation.replicas),
        "brokerGroup": msgspec.to_builtins(explanation.group),
        "groups": msgspec.to_builtins(explanation.fates),
    }


def loss_text(loss: Loss) -> str:
    """Return a loss for people."""
    damage = loss.damage
    what = "unknown messages"
    if loss.is_named:
        what = f"{damage.topic}, queue {damage.queue_id}, offset {damage.queue_offset}"
    return (
        f"LOST TO DAMAGE  {loss.broker_name}, {what}: {damage.reason}; found by {damage.found_by} "
        f"{time_text_ms(damage.found_timestamp)}, commit log position {damage.begin}, "
        f"{damage.end - damage.begin} bytes"
    )


def loss_members(loss: Loss) -> dict[str, object]:
    """Return a loss for programs."""
    damage = loss.damage
    return {
        "state": "LOST_TO_DAMAGE",
        "brokerName": loss.broker_name,
        "topic": damage.topic,
        "queueId": damage.queue_id,
        "queueOffset": damage.queue_offset,
        "position": damage.begin,
        "bytes": damage.end - damage.begin,
        "reason": damage.reason,
        "foundTimestamp": damage.found_timestamp,
        "foundBy": damage.found_by,
    }


COMMANDS: Final = [explain]
