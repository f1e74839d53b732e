"""Messages: by id, by key, by time with a filter, by queue and offset, and the newest ones live."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.consumer.fetch import Fetcher, PullQuery
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.record import parse_message_id, unpack_host
from rocketpost.console.bodies import make_visible, mask_paths, preview_body, show_body
from rocketpost.console.pages import Page
from rocketpost.console.shapes import count_bars, moment_text, parse_moment
from rocketpost.console.views.scan import (
    LIMITS,
    MATCHES_MAX,
    Scan,
    parse_start,
    scan_topic,
    tail_topic,
)
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.diagnosis.explanation import find_indexed
from rocketpost.errors import FilterError, RemoteProtocolError, RocketpostError, RouteNotFound
from rocketpost.filter import compile_filter
from rocketpost.model.group import Subscription
from rocketpost.model.hosts import host_text
from rocketpost.model.names import topic_problem
from rocketpost.model.route import MessageQueue

WAYS: Final = ("time", "key", "id", "offset", "tail")


class MessageRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A message in a list."""

    id: str
    offset_id: str
    topic: str
    store_ms: int
    broker: str
    queue_id: int
    queue_offset: int
    tags: str
    keys: list[str]
    size: int
    retries: int
    preview: str | None
    """The beginning of the body; None if the visitor may not read bodies."""


class MessagesPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    rows: list[MessageRow]
    way: str
    topic: str
    scanned: int | None = None
    total: int | None = None
    queues: int | None = None
    stopped: str = ""
    next: str = ""
    problems: dict[str, str] = {}
    bars: dict[str, list[tuple[str, int, float]]] = {}


async def show_messages(visit: Visit) -> Page:
    """Show messages that match the fields of the form."""
    way, topic = visit.choice("by", WAYS), visit.query("topic")
    scan: Scan | None = None
    problem = ""
    if topic or (way == "id" and visit.query("id")):
        try:
            scan = await _find(visit, way, topic)
        except (FilterError, BadInputError, RouteNotFound) as error:
            problem = str(error)
    found = scan.messages if scan is not None else []
    data = MessagesPage(
        rows=[describe_row(visit, each) for each in found],
        way=way,
        topic=topic,
        scanned=scan.scanned if scan and way in ("time", "tail") else None,
        total=scan.total if scan and way in ("time", "tail") else None,
        queues=scan.queues if scan and way in ("time", "tail") else None,
        stopped=scan.stopped if scan else "",
        next=scan.next if scan else "",
        problems=scan.problems if scan else {},
        bars=make_bars(found) if way == "time" else {},
    )
    if found and visit.reads_bodies and visit.request.headers.get("x-refresh") != "1":
        await visit.services.audit.record(
            user=visit.session.user.name if visit.session else "",
            address=visit.address,
            act="read messages",
            what=f"{topic} {visit.request.url.query}"[:300],
            outcome=f"{len(found)} shown",
        )
    names = sorted(
        name
        for name, each in visit.cluster.collector.snapshot.topics.items()
        if each.kind not in ("system", "retry")
    )
    return Page(
        template="messages.html",
        title=visit.text("nav.messages"),
        data=data,
        status=400 if problem and visit.wants_json else 200,
        command=_command(visit, way, topic),
        is_live=way == "tail" and bool(topic),
        values={
            "topics": names[:2000],
            "problem": problem,
            "asked": scan is not None,
            "matches_max": MATCHES_MAX,
            "limits": LIMITS,
        },
    )


async def _find(visit: Visit, way: str, topic: str) -> Scan:
    admin, now_ms = visit.admin, time.time_ns() // 1_000_000
    if topic and (problem := topic_problem(topic)):
        raise BadInputError(problem)
    if way == "id":
        name = visit.query("id", length_max=200)
        if topic:
            return Scan(messages=await find_indexed(admin, topic, name))
        return Scan(messages=[await find_by_offset_id(visit, name)])
    if way == "key":
        key = visit.query("key", length_max=500)
        if not key:
            return Scan()
        return Scan(messages=await admin.messages.by_key(topic, key, count_max=MATCHES_MAX))
    if way == "offset":
        queue = MessageQueue(visit.query("broker"), visit.number("queue", 0), topic)
        return await _read_offsets(visit, queue, visit.number("offset", 0))
    matches = _make_filter(visit)
    if way == "tail":
        return await tail_topic(admin, topic, matches)
    return await scan_topic(
        admin,
        topic,
        matches,
        begin_ms=_moment(visit, "begin", "-15m", now_ms),
        end_ms=_moment(visit, "end", "now", now_ms),
        start=parse_start(visit.query("at", length_max=20_000)),
    )


async def find_by_offset_id(visit: Visit, name: str) -> ReceivedMessage:
    """Return the message of an offset id, if a name server lists its broker.

    An offset id contains an address. Only addresses of the cluster are asked, so that no visitor
    can make the console connect to others.

    Raises:
        BadInputError: It is no such id, or names a server that is not of the cluster.
    """
    try:
        host, _ = parse_message_id(name)
    except RemoteProtocolError:
        raise BadInputError(visit.text("messages.not_an_id")) from None
    address = host_text(unpack_host(host))
    brokers = visit.cluster.collector.snapshot.brokers
    if address not in {each.address for each in brokers}:
        raise BadInputError(visit.text("messages.foreign", address=address))
    return await visit.admin.messages.by_offset_id(name)


async def _read_offsets(visit: Visit, queue: MessageQueue, offset: int) -> Scan:
    fetcher = Fetcher(visit.admin.session, TOOLS_GROUP)
    messages: list[ReceivedMessage] = []
    try:
        while len(messages) < 50:
            wish = PullQuery(queue, offset, Subscription(topic=queue.topic), count_max=32)
            result = await fetcher.pull(wish, timeout=5.0)
            if not result.messages:
                break
            messages += result.messages
            offset = result.next_offset
    except RocketpostError as error:
        return Scan(
            messages=messages, problems={f"{queue.broker_name}/{queue.queue_id}": str(error)}
        )
    return Scan(messages=messages)


def _make_filter(visit: Visit) -> Callable[[ReceivedMessage], bool]:
    tags = frozenset(part.strip() for part in visit.query("tags").split("||")) - {"", "*"}
    sql, text = visit.query("sql"), visit.query("text", length_max=500)
    expression = compile_filter(sql) if sql else None
    wanted, masks = text.encode(), visit.services.config.masks
    if wanted and not visit.reads_bodies:
        raise BadInputError(visit.text("error.bodies"))

    def matches(message: ReceivedMessage) -> bool:
        if tags and message.tags not in tags:
            return False
        if expression is not None and expression.matches(message.properties) is not True:
            return False
        if not wanted:
            return True
        if mask_paths(masks, message):  # what is not shown cannot be searched for either
            return text in show_body(message, "json", masks).text
        try:
            return wanted in message.body
        except RemoteProtocolError:
            return False

    return matches


def _moment(visit: Visit, name: str, default: str, now_ms: int) -> int:
    try:
        return parse_moment(visit.query(name) or default, now_ms=now_ms)
    except (ValueError, OverflowError):
        raise BadInputError(visit.text("error.time", field=name)) from None


def describe_row(visit: Visit, message: ReceivedMessage) -> MessageRow:
    """Return a message for a list."""
    masks = visit.services.config.masks
    return MessageRow(
        id=message.message_id,
        offset_id=message.offset_id,
        topic=message.record.topic,
        store_ms=message.store_ms,
        broker=message.queue.broker_name,
        queue_id=message.record.queue_id,
        queue_offset=message.queue_offset,
        tags=make_visible(message.tags or ""),
        keys=[make_visible(key) for key in message.keys],
        size=message.record.size,
        retries=message.reconsume_times,
        preview=preview_body(message, masks) if visit.reads_bodies else None,
    )


def make_bars(messages: list[ReceivedMessage]) -> dict[str, list[tuple[str, int, float]]]:
    """Return how the messages found are distributed. Pure."""
    if len(messages) < 2:
        return {}
    minutes = count_bars(
        moment_text(each.store_ms // 60_000 * 60_000, "utc")[:16] for each in messages
    )
    return {
        "minute": sorted(minutes),
        "tag": count_bars(make_visible(each.tags or "–") for each in messages),
        "queue": count_bars(
            f"{each.queue.broker_name}/{each.record.queue_id}" for each in messages
        ),
        "host": count_bars(each.born_host[0] for each in messages),
    }


def _command(visit: Visit, way: str, topic: str) -> str:
    named = topic or "TOPIC"
    match way:
        case "id":
            where = ["-t", topic] if topic else []
            return visit.command("explain", *where, visit.query("id") or "ID")
        case "key":
            return visit.command("queryMsgByKey", "-t", named, "-k", visit.query("key") or "KEY")
        case "offset":
            place = ("-b", visit.query("broker") or "BROKER", "-i", visit.query("queue") or "0")
            return visit.command(
                "queryMsgByOffset", "-t", named, *place, "-o", visit.query("offset") or "0"
            )
    return visit.command("printMsg", "-t", named)
