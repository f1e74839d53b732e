"""Actions on offsets: reset to a time, set one by one, copy from another group."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Final

from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.console.actions.action import Action, Field, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.lookup import find_master, masters
from rocketpost.console.shapes import parse_moment
from rocketpost.console.visit import BadInputError, NotFoundError, Visit
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue

_END: Final = -1
_QUEUES_MAX: Final = 5000


async def plan_reset(visit: Visit) -> Plan:
    """Plan other offsets of a group in a topic, queue by queue.

    Raises:
        NotFoundError: There is no such group, or it has no offsets in the topic.
    """
    group, topic = require(visit, "group"), require(visit, "topic")
    await _require_group(visit, group)
    at_ms = _reset_time(visit)
    if at_ms != _END:  # a relative time means the time of the first preview
        visit.form = {**visit.form, "when": str(at_ms)}
    state = await _progress(visit, group, topic)
    calls = OffsetCalls(visit.admin.session)
    targets = {
        queue: None if at_ms == _END else await calls.search_offset(queue, at_ms)
        for queue in state.queues
    }
    return _describe(
        visit,
        "reset-offsets",
        state,
        targets,
        command=visit.command(
            "resetOffsetByTime", "-g", group, "-t", topic, "-s", "now" if at_ms == _END else at_ms
        ),
    )


async def reset(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Reset the offsets of the whole topic at the first step, and return the result of each."""
    group, topic = require(visit, "group"), require(visit, "topic")
    if not visit.done:
        offsets = await visit.admin.groups.reset_offset(group, topic, _reset_time(visit))
        visit.done.update(
            {f"{each.broker_name} {each.queue_id}": offset for each, offset in offsets.items()}
        )
    found = visit.done.get(step.target)
    return None if found is None else str(found)


async def plan_setting(visit: Visit) -> Plan:
    """Plan given offsets of some queues, such as those that a reset replaced.

    Raises:
        BadInputError: The list of offsets has another form.
    """
    group, topic = require(visit, "group"), require(visit, "topic")
    wanted = parse_offsets(visit.query("offsets", length_max=50_000), topic)
    if not wanted:
        raise BadInputError(visit.text("action.offsets_form"))
    state = await _progress(visit, group, topic)
    missing = [queue for queue in wanted if queue not in state.queues]
    if missing:
        raise BadInputError(f"{missing[0].broker_name} {missing[0].queue_id}")
    return _describe(
        visit,
        "set-offsets",
        state,
        dict(wanted),
        command="; ".join(
            visit.command("resetOffsetByTime", "-g", group, "-t", topic, "-b",
                          find_master(visit.cluster.collector.snapshot, queue.broker_name).address,
                          "-q", queue.queue_id, "-o", offset)
            for queue, offset in wanted.items()
        ),
    )  # fmt: skip


async def set_one(visit: Visit, plan: Plan, step: Step) -> str:
    """Set the offset of one queue, through its members if there are some."""
    group, topic = require(visit, "group"), require(visit, "topic")
    broker, _, number = step.target.rpartition(" ")
    address = find_master(visit.cluster.collector.snapshot, broker).address
    queue, offset = MessageQueue(broker, int(number), topic), int(step.after)
    try:
        await visit.admin.groups.reset_queue(address, group, queue, offset)
    except ConsumerNotOnline:  # an Apache broker leaves it to members, and there are none
        await visit.admin.groups.set_offset(address, group, queue, offset)
    return step.after


async def copy_one(visit: Visit, plan: Plan, step: Step) -> str:
    """Store the offset of one queue; the group has no members."""
    broker, _, number = step.target.rpartition(" ")
    address = find_master(visit.cluster.collector.snapshot, broker).address
    queue = MessageQueue(broker, int(number), require(visit, "topic"))
    group = require(visit, "group")
    await visit.admin.groups.set_offset(address, group, queue, int(step.after))
    return step.after


async def plan_copying(visit: Visit) -> Plan:
    """Plan that a group continues where another one is.

    Raises:
        BadInputError: The group has members, who would overwrite the offsets.
    """
    source, group, topic = (require(visit, name) for name in ("source", "group", "topic"))
    if source == group:
        raise BadInputError(visit.text("action.same_group"))
    state = await _progress(visit, source, topic)
    # The name server may not know the group's own topic yet, so the topic's brokers are asked.
    for broker in sorted({queue.broker_name for queue in state.queues}):
        address = find_master(visit.cluster.collector.snapshot, broker).address
        with contextlib.suppress(ConsumerNotOnline):
            await visit.admin.groups.connections(group, address)
            raise BadInputError(visit.text("action.has_members", group=group))
    calls, steps, known = OffsetCalls(visit.admin.session), [], {}
    for queue, progress in sorted(state.queues.items(), key=lambda item: item[0].sort_key):
        known[queue] = await calls.group_offset(group, queue)
        steps.append(
            Step(
                target=f"{queue.broker_name} {queue.queue_id}",
                before="" if known[queue] is None else str(known[queue]),
                after=str(progress.consumer_offset),
            )
        )
    pairs = [(known[queue], each.consumer_offset) for queue, each in state.queues.items()]
    skipped = sum(after - before for before, after in pairs if before is not None if after > before)
    return Plan(
        action="copy-offsets",
        title=visit.text("action.copy_offsets"),
        steps=steps,
        risks=[visit.text("action.risk_skipped", count=skipped)] if skipped else [],
        undo=visit.text("action.undo_reset"),
        typed=group if skipped else "",
        command=visit.command("cloneGroupOffset", "-s", source, "-d", group, "-t", topic),
    )


def parse_offsets(text: str, topic: str) -> dict[MessageQueue, int]:
    """Return the offsets of ``broker:queue:offset,...``; nothing if the text has another form."""
    found: dict[MessageQueue, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = re.fullmatch(r"(.+):(\d{1,9}):(\d{1,18})", part)
        if match is None or len(found) >= _QUEUES_MAX:
            return {}
        found[MessageQueue(match[1], int(match[2]), topic)] = int(match[3])
    return found


def _describe(
    visit: Visit,
    action: str,
    state: ConsumeState,
    targets: dict[MessageQueue, int | None],
    *,
    command: str,
) -> Plan:
    """Return the plan of other offsets; None is the end of a queue."""
    steps, again, skipped, undo = [], 0, 0, []
    for queue, target in sorted(targets.items(), key=lambda item: item[0].sort_key):
        progress = state.queues[queue]
        end = progress.broker_offset if target is None else target
        again += max(0, progress.consumer_offset - end)
        skipped += max(0, end - progress.consumer_offset)
        undo.append(f"{queue.broker_name}:{queue.queue_id}:{progress.consumer_offset}")
        steps.append(
            Step(
                target=f"{queue.broker_name} {queue.queue_id}",
                before=str(progress.consumer_offset),
                after=visit.text("action.end") if target is None else str(target),
            )
        )
    risks = []
    if again:
        risks.append(visit.text("action.risk_again", count=again))
    if skipped:
        risks.append(visit.text("action.risk_skipped", count=skipped))
    group, topic = require(visit, "group"), require(visit, "topic")
    return Plan(
        action=action,
        title=visit.text(f"action.{action.replace('-', '_')}"),
        steps=steps,
        risks=risks,
        undo=visit.text("action.undo_reset"),
        undo_path=visit.link(
            "/do/set-offsets", group=group, topic=topic, offsets=",".join(undo), preview=1
        ),
        typed=group if skipped else "",
        moves=True,
        command=command,
    )


async def _require_group(visit: Visit, group: str) -> None:
    """Check that there is a group, since brokers would set offsets of any name.

    Raises:
        NotFoundError: No broker has it.
    """
    snapshot = await visit.cluster.collector.fresh_snapshot()
    if group in snapshot.groups:
        return
    for each in masters(snapshot):  # it may have been made just now
        table = await visit.admin.groups.table(each.address)
        if group in table.subscription_group_table:
            return
    raise NotFoundError(group)


async def _progress(visit: Visit, group: str, topic: str) -> ConsumeState:
    try:
        state = await visit.admin.groups.progress(group, topic)
    except RocketpostError as error:
        raise BadInputError(str(error)) from error
    if not state.queues:
        raise NotFoundError(f"{group} {topic}")
    return state


def _reset_time(visit: Visit) -> int:
    text = require(visit, "when")
    if text == "now":
        return _END
    try:
        return parse_moment(text, now_ms=time.time_ns() // 1_000_000)
    except ValueError:
        raise BadInputError(visit.text("error.time", field="when")) from None


_GROUP, _TOPIC = Field("group"), Field("topic")
ACTIONS: Final = (
    Action("reset-offsets", (_GROUP, _TOPIC, Field("when")), plan_reset, reset),
    Action("set-offsets", (_GROUP, _TOPIC, Field("offsets")), plan_setting, set_one),
    Action("copy-offsets", (Field("source"), _GROUP, _TOPIC), plan_copying, copy_one),
)
