"""One message: a sentence on its fate, a timeline, its fate in every group, its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from rocketpost.admin.commands.trace import OPEN_OUTCOME, Step, build_timeline
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.faults import NoMessage, ServerError
from rocketpost.codec.record import parse_message_id
from rocketpost.console.bodies import FORMS, ShownBody, make_visible, mask_paths, show_body
from rocketpost.console.pages import Page
from rocketpost.console.views.messages import find_by_offset_id
from rocketpost.console.visit import BadInputError, ForbiddenError, NotFoundError, Visit
from rocketpost.diagnosis.explanation import Explanation, explain_message, find_indexed
from rocketpost.diagnosis.fate import Fate, State
from rocketpost.diagnosis.message_facts import destination_topic
from rocketpost.errors import RemoteProtocolError, RocketpostError, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text
from rocketpost.model.names import TIMER_TOPIC, TRACE_TOPIC

_WORST_FIRST: Final = (
    State.DEAD,
    State.RETRYING,
    State.BEHIND,
    State.NOT_STARTED,
    State.UNKNOWN,
    State.IN_FLIGHT,
    State.DELAYED,
    State.FILTERED,
    State.BROADCAST,
    State.CONSUMED,
)


TRACES_MAX: Final = 64
_STEPS: Final = {
    "Pub": "trace_sent",
    "Sub": "trace_handled",
    "EndTransaction": "trace_ended",
    "Recall": "trace_recalled",
}
_GOOD_OUTCOMES: Final = ("success", "COMMIT_MESSAGE", "ROLLBACK_MESSAGE")


class Event(msgspec.Struct, kw_only=True, rename="camel"):
    """An entry of the timeline; without a time it is a gap in what is known."""

    at_ms: int | None
    what: str
    """The key of its text."""
    detail: str = ""
    source: str
    """The origin of the fact: log, index, broker, client, or trace."""
    tone: str = ""
    link_id: str = ""


class MessagePage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    id: str
    offset_id: str
    topic: str
    tags: str
    keys: list[str]
    broker: str
    queue_id: int
    queue_offset: int
    retries: int
    size: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    sentence: str
    events: list[Event]
    fates: list[Fate]
    place: Any
    replicas: Any
    properties: dict[str, str]
    body: ShownBody | None
    copies: int
    """Messages with the same id, such as repeated sends."""
    trace: list[Step]
    """Steps that clients with tracing reported."""
    trace_problem: str | None


async def show_message(visit: Visit) -> Page:
    """Explain one message.

    Raises:
        NotFoundError: There is none.
    """
    messages = await find_messages(visit)
    message = messages[min(visit.number("copy", 0), len(messages) - 1)]
    explanation = await explain_message(visit.admin, message)
    form = visit.choice("form", FORMS)
    body = None
    if visit.reads_bodies:
        body = show_body(message, form, visit.services.config.masks)
        if visit.request.headers.get("x-refresh") != "1":
            assert visit.session is not None
            await visit.services.audit.record(
                user=visit.session.user.name,
                address=visit.address,
                act="read body",
                what=f"{message.record.topic} {message.message_id}",
                outcome="shown",
            )
    data = describe_message(visit, explanation, body, copies=len(messages))
    data.trace, data.trace_problem = await read_trace(visit, message.message_id)
    data.events = merge_events(data.events, map(describe_step, data.trace))
    cause = await find_cause(visit, explanation)
    if cause:
        data.sentence = f"{data.sentence} {visit.text('message.cause', cause=make_visible(cause))}"
    return Page(
        template="message.html",
        title=visit.text("message.title"),
        data=data,
        command=visit.command("explain", "-t", message.record.topic, message.message_id),
        is_live=True,
        values={
            "is_waiting": message.record.topic == TIMER_TOPIC
            and bool(explanation.delayed_until_ms),
            "trace_command": visit.command("queryMsgTraceById", "-i", message.message_id),
            "real_topic": destination_topic(message),
            "form": form,
            "forms": FORMS,
            "is_masked": bool(mask_paths(visit.services.config.masks, message)),
        },
    )


async def download_body(visit: Visit) -> Response:
    """Return a body as a file that no browser opens.

    Raises:
        ForbiddenError: The visitor may not read bodies, or fields of the topic are masked.
    """
    if not visit.reads_bodies:
        raise ForbiddenError("error.bodies")
    message = (await find_messages(visit))[0]
    if mask_paths(visit.services.config.masks, message):
        raise ForbiddenError("message.masked")
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name,
        address=visit.address,
        act="download body",
        what=f"{message.record.topic} {message.message_id}",
        outcome="done",
    )
    name = "".join(char for char in message.message_id if char.isalnum())[:64] or "body"
    return Response(
        message.body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}.bin"'},
    )


async def find_messages(visit: Visit) -> list[ReceivedMessage]:
    """Return the messages of the id in the path, oldest first.

    Raises:
        NotFoundError: There is none.
    """
    name, topic = visit.param("id"), visit.query("topic")
    if topic:
        found = await find_indexed(visit.admin, topic, name)
        if found:
            return sorted(found, key=lambda message: message.store_ms)
    if _is_offset_id(name):
        try:
            return [await find_by_offset_id(visit, name)]
        except ServerError as error:  # the code with which brokers say that there is none
            raise NotFoundError(error.remark) from error
    raise NotFoundError(visit.text("message.none", id=name, topic=topic or "?"))


def describe_message(
    visit: Visit, explanation: Explanation, body: ShownBody | None, *, copies: int
) -> MessagePage:
    """Return the data of the page."""
    message = explanation.message
    return MessagePage(
        id=message.message_id,
        offset_id=message.offset_id,
        topic=message.record.topic,
        tags=make_visible(message.tags or ""),
        keys=[make_visible(key) for key in message.keys],
        broker=explanation.stored_at.broker_name or explanation.stored_at.address,
        queue_id=message.record.queue_id,
        queue_offset=message.queue_offset,
        retries=message.reconsume_times,
        size=message.record.size,
        born_ms=message.born_ms,
        born_host=host_text(message.born_host),
        store_ms=message.store_ms,
        store_host=host_text(message.store_host),
        sentence=make_sentence(visit, explanation),
        events=make_timeline(explanation, visit.reason),
        fates=sorted(explanation.fates, key=lambda fate: _WORST_FIRST.index(fate.state)),
        place=explanation.stored_at,
        replicas=explanation.replicas,
        properties={
            make_visible(name): make_visible(value)
            for name, value in sorted(message.properties.items())
        },
        body=body,
        copies=copies,
        trace=[],
        trace_problem=None,
    )


def make_sentence(visit: Visit, explanation: Explanation) -> str:
    """Return the most important fact about the message, in one sentence."""
    fates = explanation.fates
    if not fates:
        return visit.text("message.nobody")
    worst = min(fates, key=lambda fate: _WORST_FIRST.index(fate.state))
    same = [fate.group for fate in fates if fate.state is worst.state]
    if worst.state is State.CONSUMED:
        return visit.text("message.all_consumed", count=len(fates))
    return visit.text(
        f"message.{worst.state.value.lower()}",
        groups=", ".join(same[:5]),
        reason=visit.reason(worst.reason),
    )


async def find_cause(visit: Visit, explanation: Explanation) -> str:
    """Return the last error of a handler; a failed message carries none, but its copies do."""
    if explanation.message.last_failure is not None:
        return str(explanation.message.last_failure)
    fates = sorted(explanation.fates, key=lambda fate: _WORST_FIRST.index(fate.state))
    for fate in fates:
        if fate.copy is None or fate.state not in (State.DEAD, State.RETRYING):
            continue
        try:
            copy = await find_by_offset_id(visit, fate.copy.offset_id)
        except (RocketpostError, BadInputError):
            return ""  # the rest of the page is as true without it
        return str(copy.last_failure or "")
    return ""


def make_timeline(explanation: Explanation, reason: Callable[[str], str]) -> list[Event]:
    """Return the known events, oldest first, then the gaps in what is known. Pure."""
    message = explanation.message
    properties = message.properties
    events = [
        Event(
            at_ms=message.born_ms, what="born", detail=host_text(message.born_host), source="log"
        ),
        Event(
            at_ms=message.store_ms,
            what="stored",
            detail=f"{explanation.stored_at.broker_name or explanation.stored_at.address} "
            f"{message.record.topic}/{message.record.queue_id} @ {message.queue_offset}",
            source="log",
            tone="good",
        ),
    ]
    origin = properties.get(names.ORIGIN_MESSAGE_ID)
    if origin:
        real = properties.get(names.RETRY_TOPIC, "")
        events.append(
            Event(
                at_ms=message.store_ms,
                what="copy_of",
                detail=f"{real} {origin}",
                source="log",
                link_id=origin,
            )
        )
    if explanation.delayed_until_ms is not None:
        events.append(
            Event(
                at_ms=explanation.delayed_until_ms,
                what="due",
                detail=properties.get(names.REAL_TOPIC, ""),
                source="broker",
            )
        )
    for replica in explanation.replicas:
        if replica.broker_id and replica.present:
            events.append(
                Event(
                    at_ms=message.store_ms,
                    what="replicated",
                    detail=replica.address,
                    source="broker",
                )
            )
        elif replica.present is None:
            detail = f"{replica.address}: {replica.reason or ''}"
            events.append(
                Event(at_ms=None, what="unknown", detail=detail, source="broker", tone="gap")
            )
    for fate in explanation.fates:
        events += _fate_events(fate, reason)
    return merge_events(events, ())


def merge_events(events: Iterable[Event], more: Iterable[Event]) -> list[Event]:
    """Return events by time; those without one come last. Pure."""
    every = [*events, *more]
    known = [event for event in every if event.at_ms is not None]
    known.sort(key=lambda event: event.at_ms or 0)
    return known + [event for event in every if event.at_ms is None]


async def read_trace(visit: Visit, message_id: str) -> tuple[list[Step], str | None]:
    """Return the reports of clients about a message, or the reason why they are unknown."""
    try:
        found = await visit.admin.messages.by_key(TRACE_TOPIC, message_id, count_max=TRACES_MAX)
        return build_timeline(found, message_id), None
    except (RouteNotFound, NoMessage):
        return [], None  # no client has ever traced
    except RocketpostError as error:
        return [], str(error)


def describe_step(step: Step) -> Event:
    """Return a step of a trace as an entry of the timeline. Pure."""
    took = "" if step.took_ms is None else f" {step.took_ms} ms"
    words = f"{step.group} {step.client}{took} {step.outcome} {step.detail}"
    is_good = step.outcome in _GOOD_OUTCOMES
    return Event(
        at_ms=step.time_ms or None,
        what=_STEPS.get(step.what, "trace_other"),
        detail=make_visible(" ".join(words.split())),
        source="trace",
        tone="good" if is_good else "" if step.outcome == OPEN_OUTCOME else "bad",
    )


def _fate_events(fate: Fate, reason: Callable[[str], str]) -> list[Event]:
    events = []
    if fate.copy is not None:
        what, tone = ("died", "bad") if fate.state is State.DEAD else ("retried", "")
        events.append(
            Event(
                at_ms=fate.copy.store_ms,
                what=what,
                detail=f"{fate.group}: {fate.copy.topic} ({fate.copy.reconsume_times})",
                source="index",
                tone=tone,
                link_id=fate.copy.offset_id,
            )
        )
    if fate.until_ms is not None and fate.state is not State.DELAYED:
        events.append(
            Event(
                at_ms=fate.until_ms,
                what="next",
                detail=f"{fate.group}: {reason(fate.reason)}",
                source="broker",
            )
        )
    events += [
        Event(
            at_ms=None, what="unknown", detail=f"{fate.group}: {text}", source="broker", tone="gap"
        )
        for text in fate.unknown
    ]
    return events


def _is_offset_id(name: str) -> bool:
    try:
        parse_message_id(name)
    except RemoteProtocolError:
        return False
    return True
