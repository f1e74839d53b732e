"""Actions on single messages: send one, have a member handle one now, recall one, ask again."""

from __future__ import annotations

from typing import Final

from rocketpost.admin.commands.message import direct_result_text
from rocketpost.admin.commands.sending import make_producer
from rocketpost.client.message import Message, ReceivedMessage
from rocketpost.client.producer.recall import recall_message
from rocketpost.codec.bodies.topic import decode_object
from rocketpost.codec.recall_handle import RecallHandle
from rocketpost.codec.record import parse_message_id, unpack_host
from rocketpost.console.actions.action import Action, Field, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.bodies import mask_paths
from rocketpost.console.jobs.copying import ORIGIN
from rocketpost.console.lookup import find_topic
from rocketpost.console.visit import BadInputError, ForbiddenError, NotFoundError, Visit
from rocketpost.diagnosis.explanation import find_indexed
from rocketpost.errors import MessageRefused, RemoteProtocolError
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text

_BODY_LENGTH_MAX: Final = 512 * 1024
_DELAY_SECONDS_MAX: Final = 3 * 86_400


async def plan_sending(visit: Visit) -> Plan:
    """Plan to send one message.

    Raises:
        BadInputError: It cannot be a message.
    """
    snapshot = await visit.cluster.collector.fresh_snapshot()
    topic = find_topic(snapshot, require(visit, "topic"))
    message = _make_message(visit)
    words = ["-t", topic.name, "-p", visit.query("body", length_max=_BODY_LENGTH_MAX)[:1000]]
    words += ["-c", message.tags] if message.tags else []
    words += ["-k", message.keys] if message.keys else []
    return Plan(
        action="send-message",
        title=visit.text("action.send_message"),
        steps=[Step(target=topic.name, after=visit.text("action.bytes", count=len(message.body)))],
        risks=[visit.text("action.risk_groups", names=", ".join(sorted(topic.groups)[:10]))]
        if topic.groups
        else [],
        is_reversible=False,
        command=visit.command("sendMessage", *words),
    )


async def fill_like(visit: Visit) -> dict[str, str]:
    """Return the fields of a message like the one whose id is given."""
    if not visit.query("like") or not visit.reads_bodies:
        return {}
    visit.form = {**visit.form, "id": visit.query("like")}
    message = await _find_stored(visit)
    if mask_paths(visit.services.config.masks, message):
        raise ForbiddenError("message.masked")
    own = {key: each for key, each in message.properties.items() if key not in names.RESERVED}
    own.pop(ORIGIN, None)
    return {
        "body": message.body.decode("utf-8", "replace"),
        "tags": message.tags or "",
        "keys": " ".join(message.keys),
        "properties": "\n".join(f"{key}={value}" for key, value in own.items()),
        "sharding": message.properties.get(names.SHARDING_KEY, ""),
        "origin": message.offset_id,
    }


async def send(visit: Visit, plan: Plan, step: Step) -> str:
    """Send the message."""
    async with make_producer(visit.admin) as producer:
        result = await producer.send(_make_message(visit))
    return f"{result.status.name} {result.offset_id}"


async def plan_handling(visit: Visit) -> Plan:
    """Plan that a member of a group handles a message now."""
    group, client = require(visit, "group"), require(visit, "client")
    message = await _find_stored(visit)
    return Plan(
        action="consume-directly",
        title=visit.text("action.consume_directly"),
        steps=[Step(target=client, after=f"{message.record.topic} {message.message_id}")],
        risks=[visit.text("action.risk_directly", group=group)],
        is_reversible=False,
        command=visit.command(
            "queryMsgById", "-t", message.record.topic, "-i", message.offset_id, "-g", group,
            "-d", client,
        ),
    )  # fmt: skip


async def handle(visit: Visit, plan: Plan, step: Step) -> str:
    """Ask the member to handle it, and return its report."""
    message = await _find_stored(visit)
    report = await visit.admin.messages.consume_directly(
        host_text(message.store_host),
        group=require(visit, "group"),
        client_id=step.target,
        offset_id=message.offset_id,
        topic=message.record.topic,
    )
    return direct_result_text(decode_object(report))


async def plan_recall(visit: Visit) -> Plan:
    """Plan that a message that waits for its time is not delivered.

    Raises:
        NotFoundError: No such message waits.
    """
    message = await _find_waiting(visit)
    due = message.properties.get(names.TIMER_DELIVER_MS, "")
    return Plan(
        action="recall-message",
        title=visit.text("action.recall_message"),
        steps=[Step(target=message.message_id, before=due, after=visit.text("action.recalled"))],
        is_reversible=False,
        typed=message.message_id[-6:],
    )


async def recall(visit: Visit, plan: Plan, step: Step) -> str:
    """Recall the message."""
    message, topic = await _find_waiting(visit), require(visit, "topic")
    due_ms = int(message.properties[names.TIMER_DELIVER_MS])
    handle = RecallHandle(topic, message.queue.broker_name, due_ms, message.message_id).encode()
    session = visit.admin.session
    return await recall_message(session, "console", topic, handle, visit.admin.config.call_timeout)


async def plan_asking(visit: Visit) -> Plan:
    """Plan that producers are asked again about a transaction that was given up."""
    message = await _find_stored(visit)
    return Plan(
        action="check-transaction",
        title=visit.text("action.check_transaction"),
        steps=[Step(target=message.message_id, after=visit.text("action.asked"))],
        undo="",
        command=visit.command("resumeCheckHalfMessage", "-i", message.offset_id),
    )


async def ask(visit: Visit, plan: Plan, step: Step) -> str:
    """Make the broker ask again."""
    await visit.admin.transactions.resume((await _find_stored(visit)).offset_id)
    return step.after


def _make_message(visit: Visit) -> Message:
    properties = {}
    for line in visit.query("properties", length_max=20_000).splitlines():
        name, found, value = line.strip().partition("=")
        if name and not found:
            raise BadInputError(visit.text("action.properties_form", line=line[:100]))
        if name:
            properties[name.strip()] = value.strip()
    if visit.query("origin"):
        properties[ORIGIN] = visit.query("origin")
    delay = visit.number("delay", 0, 0, _DELAY_SECONDS_MAX)
    try:
        return Message(
            require(visit, "topic"),
            visit.query("body", length_max=_BODY_LENGTH_MAX).encode(),
            tags=visit.query("tags") or None,
            keys=visit.query("keys"),
            properties=properties,
            sharding_key=visit.query("sharding") or None,
            delay_seconds=delay or None,
        )
    except MessageRefused as error:
        raise BadInputError(str(error)) from None


async def _find_stored(visit: Visit) -> ReceivedMessage:
    """Return the message of an offset id, if its address is one of the cluster's brokers.

    Raises:
        BadInputError: It is no such id, or names a server that is not of the cluster.
    """
    text = require(visit, "id")
    try:
        host, _ = parse_message_id(text)
    except RemoteProtocolError:
        raise BadInputError(visit.text("messages.not_an_id")) from None
    address = host_text(unpack_host(host))
    if address not in {each.address for each in visit.cluster.collector.snapshot.brokers}:
        raise BadInputError(visit.text("messages.foreign", address=address))
    return await visit.admin.messages.by_offset_id(text)


async def _find_waiting(visit: Visit) -> ReceivedMessage:
    topic, name = require(visit, "topic"), require(visit, "id")
    for message in await find_indexed(visit.admin, topic, name):
        if message.properties.get(names.TIMER_DELIVER_MS, "").isdecimal():
            return message
    raise NotFoundError(visit.text("message.none", id=name, topic=topic))


_TOPIC, _ID = Field("topic"), Field("id")
ACTIONS: Final = (
    Action(
        "send-message",
        (
            _TOPIC,
            Field("body", is_text=True),
            Field("tags", is_required=False),
            Field("keys", is_required=False, label="words"),
            Field("properties", is_text=True, is_required=False),
            Field("sharding", is_required=False),
            Field("delay", is_number=True, is_required=False),
            Field("origin", is_required=False),
        ),
        plan_sending,
        send,
        prefill=fill_like,
    ),
    Action("consume-directly", (Field("group"), Field("client"), _ID), plan_handling, handle),
    Action("recall-message", (_TOPIC, _ID), plan_recall, recall),
    Action("check-transaction", (_ID,), plan_asking, ask),
)
