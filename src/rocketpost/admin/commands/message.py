"""Commands that find messages by id, key or queue offset, and show them with their tracks."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from rocketpost.admin.body import body_text
from rocketpost.admin.command import (
    Failure,
    admin_command,
    check_body_form,
    cluster_hint,
    json_option,
    parse_time_option,
    say,
    say_json,
    show_rows,
    topic_option,
)
from rocketpost.admin.commands.sending import make_producer, send_result_text
from rocketpost.admin.render import Column, Table, flag_text, map_text, time_text_ms
from rocketpost.client.admin import AdminClient
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.message import Message, ReceivedMessage
from rocketpost.codec.bodies.topic import decode_object
from rocketpost.codec.faults import NoMessage
from rocketpost.diagnosis.tracks import Track, track_message
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text
from rocketpost.model.route import MessageQueue

_UNIQUE_MAX: Final = 32
_ANY_TIME: Final = 2**63 - 1

_body_format = click.option(
    "-f",
    "--bodyFormat",
    "charset",
    callback=check_body_form,
    help="Body as charset, json, hex, base64.",
)
_group = click.option("-g", "--consumerGroup", "group", help="With -d: let a consumer handle it.")
_client = click.option("-d", "--clientId", "client", help="With -g: the consumer's client id.")


@admin_command("queryMsgById")
@topic_option
@click.option("-i", "--msgId", "ids", required=True, help="Ids, separated by commas.")
@_group
@_client
@click.option("-s", "--sendMessage", "resend", type=bool, default=False, help="Send it again.")
@click.option("-u", "--unitName", "unit", help="Accepted; has no effect.", expose_value=False)
@_body_format
@cluster_hint
@json_option
async def query_msg_by_id(
    admin: AdminClient,
    *,
    topic: str,
    ids: str,
    group: str | None,
    client: str | None,
    resend: bool,
    charset: str | None,
    as_json: bool,
) -> None:
    """Show messages by their ids, of either kind."""
    for message_id in filter(None, (part.strip() for part in ids.split(","))):
        message = await admin.messages.by_id(topic, message_id)
        if group or client:
            await _consume_directly(admin, message, group, client)
        elif resend:
            await _send_again(admin, message)
        else:
            await _show(admin, [message], charset=charset, as_json=as_json)


@admin_command("queryMsgByUniqueKey")
@topic_option
@click.option(
    "-i", "--msgId", "message_id", required=True, help="The id that the producer created."
)
@_group
@_client
@click.option("-a", "--showAll", "everything", is_flag=True, help=f"Up to {_UNIQUE_MAX} of them.")
@_body_format
@cluster_hint
@json_option
async def query_msg_by_unique_key(
    admin: AdminClient,
    *,
    topic: str,
    message_id: str,
    group: str | None,
    client: str | None,
    everything: bool,
    charset: str | None,
    as_json: bool,
) -> None:
    """Show the message with an id that its producer created."""
    found = await admin.messages.by_unique_id(topic, message_id)
    if not found:
        raise NoMessage(f"no message of the topic {topic} has the unique key {message_id}")
    if group or client:
        await _consume_directly(admin, found[0], group, client)
        return
    shown = found if everything else found[:1]
    await _show(admin, shown, charset=charset, as_json=as_json)


@admin_command("queryMsgByOffset")
@topic_option
@click.option("-b", "--brokerName", "broker", required=True, help="Name of the broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True)
@click.option("-o", "--offset", type=click.IntRange(0), required=True, help="Offset in the queue.")
@_body_format
@json_option
async def query_msg_by_offset(
    admin: AdminClient,
    *,
    topic: str,
    broker: str,
    queue_id: int,
    offset: int,
    charset: str | None,
    as_json: bool,
) -> None:
    """Show the message at an offset of a queue."""
    queue = MessageQueue(broker, queue_id, topic)
    try:
        message = await admin.messages.by_offset(queue, offset)
    except NoMessage as error:
        calls = OffsetCalls(admin.session)
        first, end = await calls.min_offset(queue), await calls.max_offset(queue)
        raise Failure(
            f"no message at offset {offset}: queue {queue_id} of {topic} on {broker} holds "
            + (f"offsets {first} to {end - 1}" if first < end else "nothing")
        ) from error
    await _show(admin, [message], charset=charset, as_json=as_json)


_KEYS: Final = Table(
    "%-50s %4s %40s",
    [
        Column("#Message ID", "msgId"),
        Column("#QID", "queueId"),
        Column("#Offset", "offset"),
    ],
)


@admin_command("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="The key.")
@click.option(
    "-b", "--beginTimestamp", "begin_ms", callback=parse_time_option, help="Stored since."
)
@click.option("-e", "--endTimestamp", "end_ms", callback=parse_time_option, help="Stored until.")
@click.option("-m", "--maxNum", "count", type=click.IntRange(1, 100_000), default=64,
              show_default=True, help="Limit; the newest messages come first.")  # fmt: skip
@cluster_hint
@json_option
async def query_msg_by_key(
    admin: AdminClient,
    *,
    topic: str,
    key: str,
    begin_ms: int | None,
    end_ms: int | None,
    count: int,
    as_json: bool,
) -> None:
    """List the messages with a key."""
    found = await admin.messages.by_key(
        topic,
        key,
        count_max=count,
        begin_ms=begin_ms or 0,
        end_ms=_ANY_TIME if end_ms is None else end_ms,
    )
    if not found:
        raise NoMessage(f"no message of the topic {topic} carries the key {key}")
    rows = [(each.message_id, each.record.queue_id, each.queue_offset) for each in found]
    show_rows(_KEYS, rows, as_json=as_json)


# Text and values.


async def _show(
    admin: AdminClient, messages: Sequence[ReceivedMessage], *, charset: str | None, as_json: bool
) -> None:
    if as_json:
        say_json([message_members(message) for message in messages])
        return
    for message in messages:
        path = await asyncio.to_thread(_save_body_blocking, message)
        say(message_text(message, path=str(path), charset=charset))
        tracks = await track_message(admin, message)
        say()
        say()
        for track in tracks:
            say(track_text(track))
        if not tracks:
            say("WARN: No Consumer")


def message_text(message: ReceivedMessage, *, path: str, charset: str | None) -> str:
    """Return a message as RocketMQ's tools print it, a line per member."""
    lines = [
        ("OffsetID", message.offset_id),
        ("Topic", message.record.topic),
        ("Tags", f"[{message.tags if message.tags is not None else 'null'}]"),
        ("Keys", f"[{message.properties.get(names.KEYS, 'null')}]"),
        ("Queue ID", str(message.record.queue_id)),
        ("Queue Offset", str(message.queue_offset)),
        ("CommitLog Offset", str(message.position)),
        ("Reconsume Times", str(message.reconsume_times)),
        ("Born Timestamp", time_text_ms(message.born_ms)),
        ("Store Timestamp", time_text_ms(message.store_ms)),
        ("Born Host", host_text(message.born_host)),
        ("Store Host", host_text(message.store_host)),
        ("System Flag", str(message.record.sys_flag)),
        ("Properties", map_text(message.properties)),
        ("Message Body Path", path),
    ]
    if charset is not None:
        lines.append(("Message Body", body_text(message.body, charset)))
    return "\n".join(f"{name + ':':<20} {value}" for name, value in lines)


def message_members(message: ReceivedMessage) -> dict[str, object]:
    """Return a message as plain values; the body is None if it is not UTF-8 text."""
    try:
        body: str | None = message.body.decode()
    except UnicodeDecodeError:
        body = None
    return {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_id,
        "topic": message.record.topic,
        "queueId": message.record.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.position,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_ms,
        "storeTimestamp": message.store_ms,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "sysFlag": message.record.sys_flag,
        "properties": message.properties,
        "bodyBytes": len(message.body),
        "body": body,
    }


def track_text(track: Track) -> str:
    """Return a track as Java prints it."""
    return (
        f"MessageTrack [consumerGroup={track.group}, trackType={track.kind.value}, "
        f"exceptionDesc={track.reason or 'null'}]"
    )


def _save_body_blocking(message: ReceivedMessage) -> Path:
    # In a fresh folder: another user could place a link at a name in /tmp that can be guessed.
    folder = Path(tempfile.mkdtemp(prefix="mqadmin-msgbodys-"))
    path = folder / message.message_id.replace("/", "_")
    path.write_bytes(message.body)
    return path


# Actions on a message.


async def _consume_directly(
    admin: AdminClient, message: ReceivedMessage, group: str | None, client: str | None
) -> None:
    if not (group and client):
        raise click.UsageError("-g GROUP and -d CLIENT_ID must be given together")
    report = await admin.messages.consume_directly(
        host_text(message.store_host),
        group=group,
        client_id=client,
        offset_id=message.offset_id,
        topic=message.record.topic,
    )
    say(direct_result_text(decode_object(report)))


def direct_result_text(report: dict[str, Any]) -> str:
    """Return a consumer's report on one message as Java prints it."""
    parts = [
        f"{key}={_java_text(report.get(key))}"
        for key in ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
    ]
    return f"ConsumeMessageDirectlyResult [{', '.join(parts)}]"


def _java_text(value: object) -> str:
    if isinstance(value, bool):
        return flag_text(value)
    return value if isinstance(value, str) else json.dumps(value)


async def _send_again(admin: AdminClient, message: ReceivedMessage) -> None:
    say(f"prepare resend msg. originalMsgId={message.message_id}")
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in names.RESERVED and name != names.UNIQUE_KEY
    }
    again = Message(
        message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        properties=kept,
        flag=message.flag,
    )
    async with make_producer(admin) as producer:
        result = await producer.send(again)
    if result.status.name != "SEND_OK":
        raise Failure(f"the message is stored, but: {result.status.name}")
    say(send_result_text(result))


COMMANDS: Final = [
    query_msg_by_id,
    query_msg_by_key,
    query_msg_by_unique_key,
    query_msg_by_offset,
]
