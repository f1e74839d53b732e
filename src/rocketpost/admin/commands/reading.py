"""Commands that print the messages or the entries of queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import click
import msgspec

from rocketpost.admin.body import body_text
from rocketpost.admin.command import (
    Failure,
    admin_command,
    check_body_form,
    errors_from,
    json_option,
    parse_time_option,
    say,
    say_json,
    topic_option,
)
from rocketpost.admin.commands.message import message_members
from rocketpost.admin.render import fastjson_text, flag_text, json_line, map_text, queue_text
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullResult, PullStatus
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.codec.bodies.stats import QueueEntries, QueueEntry
from rocketpost.model.group import Subscription, parse_tags
from rocketpost.model.hosts import host_text
from rocketpost.model.route import MessageQueue

_PULL_SECONDS: Final = 10.0
_PULL_COUNT: Final = 32
_LINE: Final = "-" * 56
_DOUBLE_LINE: Final = "=" * 38

_charset = click.option(
    "-c", "--charsetName", "charset", default="UTF-8", callback=check_body_form, show_default=True
)
_expression = click.option("-s", "--subExpression", "tags", default="*", help="TagA || TagB")
_begin = click.option(
    "-b", "--beginTimestamp", "begin_ms", callback=parse_time_option, help="Stored since."
)
_end = click.option(
    "-e", "--endTimestamp", "end_ms", callback=parse_time_option, help="Stored until."
)


class Span(NamedTuple):
    """The messages of a queue to read."""

    subscription: Subscription
    begin: int
    end: int


async def _find_span(
    admin: AdminClient, queue: MessageQueue, tags: str, begin_ms: int | None, end_ms: int | None
) -> Span:
    calls = OffsetCalls(admin.session, asks_slaves=True)
    begin, end = await calls.min_offset(queue), await calls.max_offset(queue)
    if begin_ms is not None:
        begin = max(begin, await calls.search_offset(queue, begin_ms))
    if end_ms is not None:
        # The first message after the end, so that messages stored at the end are included.
        end = min(end, await calls.search_offset(queue, end_ms + 1))
    return Span(parse_tags(queue.topic, tags, version=0), begin, end)


async def _read(
    admin: AdminClient, group: str, queue: MessageQueue, span: Span
) -> AsyncIterator[PullResult]:
    fetcher = Fetcher(admin.session, group)
    offset = span.begin
    while offset < span.end:
        count = min(_PULL_COUNT, span.end - offset)
        wish = PullQuery(queue, offset, span.subscription, count_max=count)
        result = await fetcher.pull(wish, timeout=_PULL_SECONDS)
        yield result._replace(
            messages=[each for each in result.messages if each.queue_offset < span.end]
        )
        if result.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG):
            return
        offset = max(result.next_offset, offset + 1)


def message_line(message: ReceivedMessage, *, charset: str, with_body: bool) -> str:
    """Return a message on one line as RocketMQ's tools print it."""
    body = body_text(message.body, charset) if with_body else "NOT PRINT BODY"
    return f"MSGID: {message.message_id} {stored_text(message)} BODY: {body}"


def say_message(message: ReceivedMessage, *, charset: str, with_body: bool, as_json: bool) -> None:
    """Print a message on one line, for people or for programs."""
    if as_json:
        members = message_members(message)
        if not with_body:
            del members["body"]
        say(json_line(members))
    else:
        say(message_line(message, charset=charset, with_body=with_body))


def stored_text(message: ReceivedMessage) -> str:
    """Return all stored fields of a message as Java prints them."""
    record = message.record
    signed = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={record.queue_id}, "
        f"storeSize={record.size}, queueOffset={record.queue_offset}, sysFlag={record.sys_flag}, "
        f"bornTimestamp={record.born_ms}, bornHost=/{host_text(message.born_host)}, "
        f"storeTimestamp={record.store_ms}, storeHost=/{host_text(message.store_host)}, "
        f"msgId={message.offset_id}, commitLogOffset={record.position}, "
        f"bodyCRC={record.body_crc}, reconsumeTimes={record.reconsume_times}, "
        f"preparedTransactionOffset={record.prepared_position}, "
        f"toString()=Message{{topic='{record.topic}', flag={record.flag}, "
        f"properties={map_text(message.properties)}, body=[{signed}], transactionId='null'}}]"
    )


@admin_command("printMsg")
@topic_option
@_charset
@_expression
@_begin
@_end
@click.option("-d", "--printBody", "with_body", type=bool, default=True, show_default=True)
@json_option
async def print_msg(
    admin: AdminClient,
    *,
    topic: str,
    charset: str,
    tags: str,
    begin_ms: int | None,
    end_ms: int | None,
    with_body: bool,
    as_json: bool,
) -> None:
    """Print all messages of a topic, queue by queue."""
    report = Report(as_json=as_json)
    for queue in subscribe_queues(topic, await admin.cluster.route(topic)):
        span = await _find_span(admin, queue, tags, begin_ms, end_ms)
        report.line(f"minOffset={span.begin}, maxOffset={span.end}, {queue_text(queue)}")
        async for result in _read(admin, TOOLS_GROUP, queue, span):
            for message in result.messages:
                say_message(message, charset=charset, with_body=with_body, as_json=as_json)
            if result.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG):
                report.line(_describe_end(queue, result))
        report.line(_LINE)


def _describe_end(queue: MessageQueue, result: PullResult) -> str:
    return (
        f"{queue_text(queue)} print msg finished. status={result.status.name}, "
        f"offset={result.next_offset}"
    )


@admin_command("printMsgByQueue")
@topic_option
@click.option("-a", "--brokerName", "broker", required=True, help="Name of the broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True)
@_charset
@_expression
@_begin
@_end
@click.option("-p", "--printMsg", "show", type=bool, default=False, help="Print the messages.")
@click.option("-d", "--printBody", "with_body", type=bool, default=False, help="With bodies.")
@click.option("-f", "--calculate", "count", type=bool, default=False, help="Count by tag.")
@json_option
async def print_msg_by_queue(
    admin: AdminClient,
    *,
    topic: str,
    broker: str,
    queue_id: int,
    charset: str,
    tags: str,
    begin_ms: int | None,
    end_ms: int | None,
    show: bool,
    with_body: bool,
    count: bool,
    as_json: bool,
) -> None:
    """Print the messages of a queue, or count them by tag."""
    if not show and not count:
        raise click.UsageError("say what to do: -p true prints the messages, -f true counts tags")
    queue = await _find_readable_queue(admin, topic, broker, queue_id)
    span = await _find_span(admin, queue, tags, begin_ms, end_ms)
    counts: Counter[str] = Counter()
    async for result in _read(admin, TOOLS_GROUP, queue, span):
        for message in result.messages:
            counts[message.tags or "null"] += 1
            if show:
                say_message(message, charset=charset, with_body=with_body, as_json=as_json)
    if count:
        for tag, number in counts.most_common():
            text = f"Tag: {tag:<30} Count: {number}"
            say(json_line({"tag": tag, "count": number}) if as_json else text)


async def _find_readable_queue(
    admin: AdminClient, topic: str, broker: str, queue_id: int
) -> MessageQueue:
    queue = MessageQueue(broker, queue_id, topic)
    queues = subscribe_queues(topic, await admin.cluster.route(topic))
    if queue not in queues:
        places = ", ".join(f"{each.broker_name}/{each.queue_id}" for each in queues)
        raise Failure(f"{topic} has no queue {broker}/{queue_id} to read; there are: {places}")
    return queue


@admin_command("consumeMessage")
@topic_option
@click.option("-b", "--brokerName", "broker", help="With -i: name of the broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="With -b: the queue.")
@click.option("-o", "--offset", type=click.IntRange(0), help="With -b and -i: start here.")
@click.option("-g", "--consumerGroup", "group", default=TOOLS_GROUP, help="Pull for this group.")
@click.option(
    "-s", "--beginTimestamp", "begin_ms", callback=parse_time_option, help="Stored since."
)
@_end
@click.option(
    "-c", "--MessageNumber", "count", type=click.IntRange(1), default=128, show_default=True
)
@json_option
async def consume_message(
    admin: AdminClient,
    *,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str,
    begin_ms: int | None,
    end_ms: int | None,
    count: int,
    as_json: bool,
) -> None:
    """Pull messages and print them; the group's offsets do not change."""
    if (broker is None) != (queue_id is None) or (offset is not None and broker is None):
        raise click.UsageError("-b and -i must be given together, and -o needs both")
    if broker is not None and queue_id is not None:
        queues = [await _find_readable_queue(admin, topic, broker, queue_id)]
    else:
        queues = subscribe_queues(topic, await admin.cluster.route(topic))
    left = count
    for queue in queues:
        span = await _find_span(admin, queue, "*", begin_ms, end_ms)
        begin = span.begin if offset is None else max(offset, span.begin)
        span = span._replace(begin=begin, end=min(span.end, begin + left))
        left -= await _consume(admin, group, queue, span, as_json=as_json)
        if not left:
            break


async def _consume(
    admin: AdminClient, group: str, queue: MessageQueue, span: Span, *, as_json: bool
) -> int:
    report = Report(as_json=as_json)
    printed, status, at = 0, PullStatus.NO_NEW_MSG, span.begin
    async for result in _read(admin, group, queue, span):
        if result.messages:
            report.line("Consume ok")
        for message in result.messages:
            say_message(message, charset="utf-8", with_body=True, as_json=as_json)
        printed += len(result.messages)
        at = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            status = result.status
    report.line(f"{queue_text(queue)} print msg finished. status={status.name}, offset={at}")
    return printed


# Entries.


@admin_command("queryCq")
@topic_option
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), required=True)
@click.option("-i", "--index", type=int, required=True, help="First entry; -3: the last three.")
@click.option("-c", "--count", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("-b", "--broker", metavar="HOST:PORT", help="The broker; any if not given.")
@click.option(
    "-g", "--consumer", "group", default="", help="Show the result of this group's filter."
)
@json_option
async def query_cq(
    admin: AdminClient,
    *,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    broker: str | None,
    group: str,
    as_json: bool,
) -> None:
    """Show entries of a consume queue."""
    route = await admin.cluster.route(topic)
    address = broker or next((each.reader for each in route.broker_datas if each.reader), None)
    if address is None:
        raise Failure(f"{topic} has no broker; give one with -b")
    with errors_from(address):
        entries = await admin.brokers.queue_entries(
            address, topic, queue_id, index=index, count=count, group=group
        )
    if as_json:
        say_json(entries)
    else:
        first = index if index >= 0 else max(0, entries.max_queue_index + index)
        first = max(first, entries.min_queue_index)
        say(entries_text(entries, first=first, whose=f"{group}@{topic}" if group else None))


def entries_text(entries: QueueEntries, *, first: int, whose: str | None) -> str:
    """Return entries of a consume queue and the subscription of the given group as text."""
    lines: list[str] = []
    if entries.subscription_data is not None:
        subscription = msgspec.to_builtins(entries.subscription_data, order="deterministic")
        lines += ["Subscription data: ", fastjson_text(subscription), _DOUBLE_LINE]
    if whose is not None:
        online = entries.subscription_data is not None
        filter_data = entries.filter_data or "null" if online else f"{whose} is not online!"
        lines += ["Filter data: ", filter_data, _DOUBLE_LINE]
    span = f"max: {entries.max_queue_index}, min: {entries.min_queue_index}"
    lines += ["Queue data: ", span, _DOUBLE_LINE]
    for index, entry in enumerate(entries.queue_data, first):
        lines += [f"idx: {index}", _entry_text(entry), _DOUBLE_LINE]
    return "\n".join(lines)


def _entry_text(entry: QueueEntry) -> str:
    return (
        f"ConsumeQueueData{{physicOffset={entry.physic_offset}, physicSize={entry.physic_size}, "
        f"tagsCode={entry.tags_code}, extendDataJson='{entry.extend_data_json or 'null'}', "
        f"bitMap='{entry.bit_map or 'null'}', eval={flag_text(entry.eval)}, "
        f"msg='{entry.msg or 'null'}'}}"
    )


COMMANDS: Final = [print_msg, print_msg_by_queue, consume_message, query_cq]
