"""The action that resends dead letters: a dry run, then a job."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Final

from rocketpost.client.admin import Outcome, Selection
from rocketpost.console.actions.action import Action, Field, describe_readers, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.collect.snapshot import Snapshot
from rocketpost.console.jobs.record import JobRecord
from rocketpost.console.jobs.resending import KIND, make_selection
from rocketpost.console.jobs.runner import BusyError, new_job_id
from rocketpost.console.shapes import parse_moment
from rocketpost.console.visit import BadInputError, Visit

LETTERS_MAX: Final = 100_000
_LOOKED_UP_MAX: Final = 500
"""Most letters whose copies a preview looks for."""
_TYPED_LETTERS: Final = 100
RATE_MAX: Final = 10_000


def selection_of(visit: Visit) -> Selection:
    """Return the dead letters that the fields of a visit describe.

    Raises:
        BadInputError: A time is malformed.
    """
    return make_selection(_fields(visit))


async def plan_resending(visit: Visit) -> Plan:
    """Plan to send dead letters to their topics again.

    Raises:
        BadInputError: There are no such letters, or too many for one job.
    """
    group, fields = require(visit, "group"), _fields(visit)
    if not fields["end"]:  # letters that come later are not part of what was shown
        fields["end"] = str(time.time_ns() // 1_000_000)
    visit.form = {**visit.form, **fields}
    selection = make_selection(fields)
    counts: Counter[str] = Counter()
    async for letter in visit.admin.dead_letters.read(group, selection):
        counts[letter.topic or ""] += 1
        if counts.total() > LETTERS_MAX:
            raise BadInputError(visit.text("action.many_letters", count=LETTERS_MAX))
    if not counts:
        raise BadInputError(visit.text("action.no_letters"))
    before = await _count_sent(visit, group, selection, counts)
    snapshot = await visit.cluster.collector.fresh_snapshot()
    readers = {name for topic in counts for name in _readers(snapshot, topic)}
    words = {
        "-r": visit.number("rate", 100, 1, RATE_MAX), "-x": fields["cause"], "-t": fields["topic"],
        "-i": fields["ids"], "-k": fields["keys"], "-b": fields["begin"], "-e": fields["end"],
    }  # fmt: skip
    visit.number("refused", 100, 0, 100)
    return Plan(
        action="resend-dead-letters",
        title=visit.text("action.resend_dead_letters"),
        steps=[
            Step(
                target=topic,
                before=visit.text("action.sent_before", count=before[topic]) if before else "",
                after=visit.text("action.messages", count=count),
            )
            for topic, count in sorted(counts.items())
        ],
        total=counts.total(),
        risks=[describe_readers(visit, readers)],
        is_reversible=False,
        typed=group if counts.total() > _TYPED_LETTERS else "",
        command=visit.command(
            "dlqResend", "-g", group, *(word for pair in words.items() if pair[1] for word in pair)
        ),
    )


async def start_resending(visit: Visit, plan: Plan) -> JobRecord:
    """Start the job of a plan.

    Raises:
        BadInputError: One runs for the same group.
    """
    group = require(visit, "group")
    assert visit.session is not None
    names = ("cause", "topic", "ids", "keys", "begin", "end", "rate", "refused")
    record = JobRecord(
        id=new_job_id(),
        kind=KIND,
        what=group,
        cluster=visit.cluster.name,
        user=visit.session.user.name,
        command=plan.command,
        fields={name: visit.query(name) for name in names},
        total=plan.total,
        begun_ms=time.time_ns() // 1_000_000,
    )
    try:
        return await visit.services.jobs.start(record, visit.admin)
    except BusyError as error:
        raise BadInputError(visit.text("jobs.busy", id=error)) from None


async def _count_sent(
    visit: Visit, group: str, selection: Selection, counts: Counter[str]
) -> Counter[str]:
    """Return how many of each topic were sent before; nothing if there are many letters."""
    found: Counter[str] = Counter()
    if counts.total() > _LOOKED_UP_MAX:
        return found
    found.update(dict.fromkeys(counts, 0))
    walk = visit.admin.dead_letters.resend_each(group, selection, dry_run=True)
    async with contextlib.aclosing(walk):
        async for each in walk:
            if each.outcome is Outcome.ALREADY_SENT:
                found[each.letter.topic or ""] += 1
    return found


def _fields(visit: Visit) -> dict[str, str]:
    found = {name: visit.query(name) for name in ("cause", "topic", "ids", "keys", "begin", "end")}
    for name in ("begin", "end"):
        if found[name]:
            try:
                now_ms = time.time_ns() // 1_000_000
                found[name] = str(parse_moment(found[name], now_ms=now_ms))
            except (ValueError, OverflowError):
                raise BadInputError(visit.text("error.time", field=name)) from None
    return found


def _readers(snapshot: Snapshot, topic: str) -> list[str]:
    return snapshot.topics[topic].groups if topic in snapshot.topics else []


ACTIONS: Final = (
    Action(
        "resend-dead-letters",
        (
            Field("group"),
            Field("cause", is_required=False),
            Field("topic", is_required=False),
            Field("ids", is_required=False),
            Field("keys", is_required=False),
            Field("begin", is_required=False),
            Field("end", is_required=False),
            Field("rate", "100", is_number=True),
            Field("refused", "10", is_number=True),
        ),
        plan_resending,
        start=start_resending,
    ),
)
