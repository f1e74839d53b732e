"""Dead letters: groups that have some, their causes, the letters, and files of them."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from rocketpost.admin.commands.dead_letter import letter_members
from rocketpost.client.admin import DeadLetter, Selection
from rocketpost.client.admin.dead_letter import UNKNOWN_CAUSE
from rocketpost.codec.bodies.topic import TopicState
from rocketpost.console.actions.dead_letters import selection_of
from rocketpost.console.bodies import make_visible, preview_body
from rocketpost.console.collect.snapshot import GroupView, Snapshot
from rocketpost.console.collect.survey import group_addresses
from rocketpost.console.jobs.record import JobRecord
from rocketpost.console.jobs.resending import KIND
from rocketpost.console.lookup import find_group
from rocketpost.console.pages import Page
from rocketpost.console.shapes import count_bars, safe_cell
from rocketpost.console.views.lists import cut_list
from rocketpost.console.visit import BadInputError, ForbiddenError, NotFoundError, Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError, RouteNotFound
from rocketpost.model.names import dlq_topic

logger = logging.getLogger(__name__)

LETTERS_MAX: Final = 20_000
SECONDS_MAX: Final = 5.0
SHOWN_MAX: Final = 100
EXPORTED_MAX: Final = 1_000_000
_JOBS_MAX: Final = 3
"""Newest jobs that the page of a group shows."""
_GROUPS_MAX: Final = 300
"""Most groups whose letters a list counts."""
FORMATS: Final = ("jsonl", "csv")
_COLUMNS: Final = (
    "deadLetterId", "msgId", "originMsgId", "topic", "tags", "keys", "deadSince", "cause",
    "reconsumeTimes", "bornHost", "brokerName", "queueOffset", "body",
)  # fmt: skip


class DeadGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """A group with a topic of dead letters."""

    name: str
    count: int | None
    newest_ms: int | None
    problem: str = ""


class Cause(msgspec.Struct, kw_only=True, rename="camel"):
    """A kind of failure."""

    kind: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""


class LetterRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A dead letter in the list."""

    id: str
    message_id: str
    topic: str
    dead_ms: int
    retries: int
    keys: list[str]
    cause: str
    preview: str | None


class LettersPage(msgspec.Struct, kw_only=True, rename="camel"):
    """Dead letters of a group that match the form."""

    group: str
    count: int
    stopped: str
    """The bound that ended the reading: letters or seconds; empty if it came to the end."""
    causes: list[Cause]
    topics: list[tuple[str, int, float]]
    letters: list[LetterRow]


async def show_dead_letters(visit: Visit) -> Page:
    """Show the groups that have dead letters."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    groups = [each for each in snapshot.groups.values() if each.has_dead_topic][:_GROUPS_MAX]
    rows = await map_concurrently(groups, lambda each: _look(visit, snapshot, each))
    listing = cut_list(
        visit,
        [each for each in rows if each.count != 0],
        name=lambda each: each.name,
        sorts={
            "newest": lambda each: each.newest_ms,
            "count": lambda each: each.count,
            "name": lambda each: each.name,
        },
        descending=True,
    )
    return Page(
        template="dead_letters.html",
        title=visit.text("nav.dead_letters"),
        data=listing,
        command=visit.command("dlqList", "-g", listing.rows[0].name if listing.rows else "GROUP"),
        is_live=True,
        values={"is_cut": len(groups) == _GROUPS_MAX, "groups_max": _GROUPS_MAX},
    )


async def show_letters(visit: Visit) -> Page:
    """Show the dead letters of a group by cause, and the newest ones."""
    group, problem = visit.param("name"), ""
    try:
        selection = selection_of(visit)
    except BadInputError as error:
        selection, problem = Selection(), str(error)
    try:
        data = await read_letters(visit, group, selection)
    except RouteNotFound:
        await _require_group(visit, group)
        raise
    words = [word for key, word in (("cause", "-x"), ("topic", "-t")) if visit.query(key)]
    values = [visit.query(key) for key in ("cause", "topic") if visit.query(key)]
    pairs = [part for pair in zip(words, values, strict=True) for part in pair]
    if data.letters and visit.reads_bodies:
        assert visit.session is not None
        await visit.services.audit.record(
            user=visit.session.user.name,
            address=visit.address,
            act="read dead letters",
            what=f"{group} {visit.request.url.query}"[:300],
            outcome=f"{len(data.letters)} shown",
        )
    return Page(
        template="letters.html",
        title=visit.text("dead.of", group=group),
        data=data,
        command=visit.command("dlqList", "-g", group, *pairs, "-c"),
        values={
            "problem": problem,
            "jobs": _find_jobs(visit, group),
            "letters_max": LETTERS_MAX,
            "shown_max": SHOWN_MAX,
            "fields": {
                key: visit.query(key) for key in ("cause", "topic", "keys", "ids", "begin", "end")
            },
        },
    )


async def _require_group(visit: Visit, group: str) -> None:
    """Check that there is a group.

    Raises:
        NotFoundError: No broker has it.
        RocketpostError: Nobody knows whether a broker has it.
    """
    snapshot = await visit.cluster.collector.search(lambda each: group in each.groups)
    try:
        find_group(snapshot, group)
    except NotFoundError as error:
        raise NotFoundError(visit.text("dead.no_group", group=group)) from error


def _find_jobs(visit: Visit, group: str) -> list[JobRecord]:
    """Return the newest jobs that resent letters of a group."""
    about = (KIND, group, visit.cluster.name)
    jobs = visit.services.jobs.list()
    return [each for each in jobs if (each.kind, each.what, each.cluster) == about][:_JOBS_MAX]


async def export_letters(visit: Visit) -> Response:
    """Return dead letters as a file, line by line.

    Raises:
        ForbiddenError: The visitor may not read bodies, or fields of bodies are masked.
        BadInputError: There is no such format.
        NotFoundError: There is no such group.
    """
    if not visit.reads_bodies:
        raise ForbiddenError("error.bodies")
    if visit.services.config.masks:
        raise ForbiddenError("message.masked")
    group, form = visit.param("name"), visit.query("format", FORMATS[0])
    if form not in FORMATS:
        choices = ", ".join(FORMATS)
        raise BadInputError(visit.text("error.choice", field="format", choices=choices))
    try:
        await visit.admin.cluster.route(dlq_topic(group))
    except RouteNotFound:
        await _require_group(visit, group)
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name,
        address=visit.address,
        act="export dead letters",
        what=f"{group} {visit.request.url.query}"[:300],
        outcome="begun",
    )
    name = "".join(char for char in group if char.isalnum() or char in "-_")[:64]
    return StreamingResponse(
        _lines(visit, group, selection_of(visit), form),
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="dead-letters-{name}.{form}"'},
    )


async def read_letters(visit: Visit, group: str, selection: Selection) -> LettersPage:
    """Read dead letters until a bound is reached, and count their causes.

    Raises:
        RouteNotFound: No broker knows the group.
    """
    loop = asyncio.get_running_loop()
    deadline, count, stopped = loop.time() + SECONDS_MAX, 0, ""
    causes: dict[str, Cause] = {}
    topics: Counter[str] = Counter()
    newest: deque[DeadLetter] = deque(maxlen=SHOWN_MAX)
    async for letter in visit.admin.dead_letters.read(group, selection):
        if count >= LETTERS_MAX or loop.time() > deadline:
            stopped = "letters" if count >= LETTERS_MAX else "seconds"
            break
        count += 1
        add_cause(causes, letter)
        topics[letter.topic or UNKNOWN_CAUSE] += 1
        newest.append(letter)
    return LettersPage(
        group=group,
        count=count,
        stopped=stopped,
        causes=sorted(causes.values(), key=lambda each: (-each.count, each.kind)),
        topics=count_bars(topics.elements()),
        letters=[_describe(visit, each) for each in sorted(newest, key=lambda each: -each.dead_ms)],
    )


def add_cause(causes: dict[str, Cause], letter: DeadLetter) -> None:
    """Count a letter to its kind of failure."""
    failure = letter.message.last_failure
    kind = UNKNOWN_CAUSE if failure is None else make_visible(failure.kind)
    cause = causes.setdefault(kind, Cause(kind=kind, first_ms=letter.dead_ms))
    cause.count += 1
    cause.first_ms = min(cause.first_ms, letter.dead_ms)
    if letter.dead_ms >= cause.last_ms:
        cause.last_ms = letter.dead_ms
        cause.example = make_visible(failure.text[:200]) if failure is not None else ""


async def _look(visit: Visit, snapshot: Snapshot, group: GroupView) -> DeadGroup:
    topic = dlq_topic(group.name)
    brokers = snapshot.topics[topic].brokers
    addresses = [
        address
        for name, address in group_addresses(snapshot, group).items()
        if name in brokers
    ]  # fmt: skip

    async def ask() -> DeadGroup:
        states: list[TopicState] = []
        for address in addresses:
            try:
                states.append(await visit.admin.topics.state_at(address, topic))
            except RocketpostError as error:
                return DeadGroup(name=group.name, count=None, newest_ms=None, problem=str(error))
        queues = [each for state in states for each in state.queues.values()]
        return DeadGroup(
            name=group.name,
            count=sum(each.max_offset - each.min_offset for each in queues),
            newest_ms=max((each.last_update_timestamp for each in queues), default=0) or None,
        )

    return await visit.cluster.answers.ask(("dead", group.name), ask)


def _describe(visit: Visit, letter: DeadLetter) -> LetterRow:
    message = letter.message
    return LetterRow(
        id=letter.id,
        message_id=message.message_id,
        topic=letter.topic or "",
        dead_ms=letter.dead_ms,
        retries=message.reconsume_times,
        keys=[make_visible(key) for key in message.keys],
        cause=make_visible(letter.cause)[:300],
        preview=preview_body(message, visit.services.config.masks) if visit.reads_bodies else None,
    )


async def _lines(
    visit: Visit, group: str, selection: Selection, form: str
) -> AsyncIterator[str]:  # fmt: skip
    count = 0
    if form == "csv":
        yield _csv_line(_COLUMNS)
    try:
        async for letter in visit.admin.dead_letters.read(group, selection):
            members = letter_members(letter)
            if form == "csv":
                yield _csv_line([_cell(members[name]) for name in _COLUMNS])
            else:
                yield json.dumps(members, ensure_ascii=False) + "\n"
            count += 1
            if count >= EXPORTED_MAX:
                break
    except RocketpostError as error:
        # The answer has begun: the last line says that the file is cut, and why.
        logger.info("export cut: group=%s reason=%s", group, error)
        cut = {"error": str(error)}
        yield _csv_line(["error", *cut.values()]) if form == "csv" else json.dumps(cut) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return safe_cell("" if value is None else str(value))


def _csv_line(cells: Iterable[str]) -> str:
    file = io.StringIO()
    csv.writer(file).writerow(cells)
    return file.getvalue()
