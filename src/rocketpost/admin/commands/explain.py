"""``explain``: where a message is stored, and what became of it in every group."""

from __future__ import annotations

import re
import time
from typing import Final

import click
import msgspec

from rocketpost.admin.command import Failure, admin_command, json_option, say, say_json
from rocketpost.admin.commands.message import host_text
from rocketpost.admin.damage import lost_members, lost_message, lost_of, lost_text
from rocketpost.admin.evidence import Place, Witness, broker_of, brokers_of, real_topic
from rocketpost.admin.fate import Fate, judge
from rocketpost.admin.render import time_text_ms
from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.faults import NoMessage
from rocketpost.errors import RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.model.route import MessageQueue

UNKNOWN: Final = "unknown here"
_is_offset_id = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})").fullmatch
_LINE: Final = "{:<16} {}"


class Explanation(msgspec.Struct, kw_only=True):
    """All that is told of one message."""

    message: ReceivedMessage
    place: Place
    delayed_until_ms: int | None
    fates: list[Fate]


@admin_command("explain")
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
            lost = await lost_message(admin, queue, offset)
            if lost is None:
                raise
            say_json([lost_members(lost)]) if as_json else say(lost_text(lost))
            return
    told = [await explain_message(admin, message) for message in messages]
    if as_json:
        say_json([members(each) for each in told])
    else:
        say("\n\n".join(text(each) for each in told))


async def explain_losses(
    admin: AdminClient, topic: str | None, group: str | None, *, as_json: bool
) -> None:
    """Tell which messages of a topic, or of the topics of a group, were lost to damage."""
    topics = [topic] if topic is not None else await topics_of_group(admin, group or "")
    losses = list(dict.fromkeys([lost for each in topics for lost in await lost_of(admin, each)]))
    if as_json:
        say_json([lost_members(lost) for lost in losses])
    elif losses:
        say("\n".join(map(lost_text, losses)))
    else:
        say(f"no message of {', '.join(topics) or 'any topic of the group'} is known to be lost")


async def topics_of_group(admin: AdminClient, group: str) -> list[str]:
    """Return the topics that a group reads on any broker."""
    topics: set[str] = set()
    for broker in (await admin.cluster.info()).broker_addr_table.values():
        for broker_id, address in broker.broker_addrs.items():
            if broker_id == 0:
                topics.update(await admin.groups.topics_of(address, group))
    return sorted(topics)


async def find(admin: AdminClient, name: str, topic: str | None) -> list[ReceivedMessage]:
    """Return the messages that an id or a key means, oldest first.

    Raises:
        NoMessage: There is none.
        Failure: It is no offset id, and the topic is missing.
    """
    if topic is not None:
        found = await _indexed(admin, name, topic)
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
        raise Failure(f"{name} is no offset id; add -t TOPIC to look it up as an id or a key")
    if _is_offset_id(name):
        return [await admin.messages.by_id(topic, name)]
    losses = await lost_of(admin, topic)
    hint = f"; {len(losses)} of its messages were lost to damage: explain -t {topic}"
    raise NoMessage(
        f"no message of the topic {topic} has the id or the key {name}{hint if losses else ''}"
    )


async def _indexed(admin: AdminClient, name: str, topic: str) -> list[ReceivedMessage]:
    brokers = await brokers_of(admin, topic)
    if not brokers:
        await admin.cluster.route(topic)  # says that there is no such topic
    for unique in (True, False):
        found = [
            each
            for broker in brokers
            for each in await admin.messages.indexed_at(broker, topic, name, unique=unique)
        ]
        found += [
            each
            for broker in brokers
            for each in await admin.messages.indexed_at(broker, SCHEDULE_TOPIC, name, unique=unique)
            if each.properties.get(names.REAL_TOPIC) == topic and not _delivered(each, found)
        ]
        for broker in brokers:
            timed = await admin.messages.indexed_at(broker, TIMER_TOPIC, name, unique=unique)
            # Newest first: one that waits long is stored again now and then.
            for each in sorted(timed, key=lambda message: -message.position):
                is_recall = names.TIMER_RECALLS in each.properties
                if each.properties.get(names.REAL_TOPIC) == topic and not is_recall:
                    found += [] if _delivered(each, found) else [each]
        if found:
            return found
    return []


def _delivered(waiting: ReceivedMessage, found: list[ReceivedMessage]) -> bool:
    ids = {each.message_id for each in found}
    return waiting.message_id in ids


async def explain_message(admin: AdminClient, message: ReceivedMessage) -> Explanation:
    """Ask everybody who knows something about a message."""
    home = await broker_of(admin, message)
    others = await brokers_of(admin, real_topic(message))
    brokers = [home, *(each for each in others if each.broker_name != home.broker_name)]
    witness = Witness(admin, message, home, brokers)
    delayed_until_ms = await witness.delayed_until_ms()
    now_ms = time.time_ns() // 1_000_000
    fates = [
        judge(await witness.facts(group, delayed_until_ms=delayed_until_ms), now_ms=now_ms)
        for group in await witness.groups()
    ]
    return Explanation(
        message=message,
        place=await witness.place(),
        delayed_until_ms=delayed_until_ms,
        fates=fates,
    )


# Showing.


def text(told: Explanation) -> str:
    """Return an explanation for people."""
    message, place = told.message, told.place
    indexed = {True: "yes", False: "no", None: UNKNOWN}[place.indexed]
    lines = [
        ("Message", message.message_id),
        ("Offset ID", message.offset_id),
        ("Topic", message.record.topic),
        ("Tags / keys", f"{message.tags or '-'} / {' '.join(message.keys) or '-'}"),
        (
            "Queue",
            f"{place.broker_name or place.address}, queue {message.record.queue_id}, "
            f"offset {message.queue_offset}",
        ),
        ("Commit log", f"position {place.position}, {place.size} bytes"),
        ("File", place.file or UNKNOWN),
        ("Indexed", indexed),
        ("Born", f"{time_text_ms(message.born_ms)} at {host_text(message.born_host)}"),
        ("Stored", f"{time_text_ms(message.store_ms)} at {host_text(message.store_host)}"),
    ]
    if message.reconsume_times:
        lines.append(("Delivered before", f"{message.reconsume_times} times"))
    origin = message.properties.get(names.ORIGIN_MESSAGE_ID)
    if origin:
        lines.append(("Copy of", f"{origin} in {message.properties.get(names.RETRY_TOPIC)}"))
    if told.delayed_until_ms is not None:
        real = message.properties.get(names.REAL_TOPIC, UNKNOWN)
        lines.append(("Delayed until", f"{time_text_ms(told.delayed_until_ms)}, for {real}"))
    shown = [_LINE.format(f"{name}:", value) for name, value in lines]
    if not told.fates:
        shown.append(_LINE.format("Groups:", "none has offsets or members for this topic"))
    return "\n".join([*shown, *(fate_text(fate) for fate in told.fates)])


def fate_text(fate: Fate) -> str:
    """Return what became of the message in a group: a line, and more below it if there is more."""
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
    lines.append(f"    {fate.members} members online" if fate.members else "    nobody is online")
    for owner in fate.owners:
        held = f"queue is with {owner.client_id}"
        if owner.cached_count:
            held += f", which holds offsets {owner.cached_first} to {owner.cached_last}"
        if owner.locked:
            held += f"; locked by it, renewed {time_text_ms(owner.lock_ms)}"
        lines.append(f"    {held}")
    lines += [f"    {UNKNOWN}: {what}" for what in fate.unknown]
    return "\n".join(lines)


def members(told: Explanation) -> dict[str, object]:
    """Return an explanation for programs."""
    message = told.message
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
        "delayedUntil": told.delayed_until_ms,
        "place": msgspec.to_builtins(told.place),
        "groups": msgspec.to_builtins(told.fates),
    }


COMMANDS: Final = [explain]
