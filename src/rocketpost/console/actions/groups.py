"""Actions on consumer groups: create, delete, reset offsets."""

from __future__ import annotations

import time
from typing import Final

from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.console.access.users import Role
from rocketpost.console.actions.action import Action, Field, find_master, masters, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.collect.snapshot import GroupView, Snapshot
from rocketpost.console.shapes import parse_moment
from rocketpost.console.visit import BadInputError, NotFoundError, Visit
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import group_problem

_END: Final = -1


async def plan_creation(visit: Visit) -> Plan:
    """Plan a new group on all masters.

    Raises:
        BadInputError: The name is illegal, or the group exists.
    """
    group = require(visit, "group")
    if problem := group_problem(group):
        raise BadInputError(problem)
    snapshot = await visit.cluster.collector.fresh_snapshot()
    if group in snapshot.groups:
        raise BadInputError(visit.text("action.exists", name=group))
    retries = visit.number("retries", 16, 0, 1000)
    cluster = next(iter(snapshot.clusters), "")
    return Plan(
        action="create-group",
        title=visit.text("action.create_group"),
        steps=[
            Step(target=each.name, after=visit.text("action.retries", count=retries))
            for each in masters(snapshot)
        ],
        undo=visit.text("action.undo_create"),
        command=visit.command("updateSubGroup", "-g", group, "-c", cluster, "-r", retries),
    )


async def create(visit: Visit, plan: Plan, step: Step) -> str:
    """Create the group on one broker."""
    broker = find_master(visit.cluster.collector.snapshot, step.target)
    retries = visit.number("retries", 16, 0, 1000)
    config = GroupConfig(group_name=require(visit, "group"), retry_max_times=retries)
    await visit.admin.groups.create(broker.address, config)
    return step.after


async def plan_deletion(visit: Visit) -> Plan:
    """Plan the end of a group."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    group = _find_group(snapshot, require(visit, "group"))
    names = sorted(group.brokers) or [each.name for each in masters(snapshot)]
    return Plan(
        action="delete-group",
        title=visit.text("action.delete_group"),
        steps=[Step(target=name, before=", ".join(sorted(group.topics))) for name in names],
        risks=[visit.text("action.risk_offsets")],
        is_reversible=False,
        typed=group.name,
        role=Role.ADMIN,
        command=visit.command(
            "deleteSubGroup", "-g", group.name, "-c", next(iter(snapshot.clusters), ""), "-r", True
        ),
    )


async def delete(visit: Visit, plan: Plan, step: Step) -> str:
    """Delete the group and its offsets on one broker."""
    broker = find_master(visit.cluster.collector.snapshot, step.target)
    await visit.admin.groups.delete(broker.address, require(visit, "group"), clean_offsets=True)
    return visit.text("action.deleted")


async def plan_reset(visit: Visit) -> Plan:
    """Plan other offsets of a group in a topic, queue by queue.

    Raises:
        NotFoundError: The group has no offsets in the topic.
    """
    group, topic = require(visit, "group"), require(visit, "topic")
    at_ms = _reset_time(visit)
    if at_ms != _END:  # a relative time means the time of the first preview
        visit.form = {**visit.form, "when": str(at_ms)}
    state = await visit.admin.groups.progress(group, topic)
    if not state.queues:
        raise NotFoundError(f"{group} {topic}")
    calls = OffsetCalls(visit.admin.session)
    steps, again, skipped = [], 0, 0
    for queue, each in sorted(state.queues.items(), key=lambda item: item[0].sort_key):
        target = each.broker_offset if at_ms == _END else await calls.search_offset(queue, at_ms)
        again += max(0, each.consumer_offset - target)
        skipped += max(0, target - each.consumer_offset)
        steps.append(
            Step(
                target=f"{queue.broker_name} {queue.queue_id}",
                before=str(each.consumer_offset),
                after=visit.text("action.end") if at_ms == _END else str(target),
            )
        )
    risks = []
    if again:
        risks.append(visit.text("action.risk_again", count=again))
    if skipped:
        risks.append(visit.text("action.risk_skipped", count=skipped))
    return Plan(
        action="reset-offsets",
        title=visit.text("action.reset_offsets"),
        steps=steps,
        risks=risks,
        undo=visit.text("action.undo_reset"),
        typed=group if skipped else "",
        moves=True,
        command=visit.command(
            "resetOffsetByTime", "-g", group, "-t", topic, "-s", "now" if at_ms == _END else at_ms
        ),
    )


async def reset(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Reset the offsets of the whole topic at the first step, and tell the result of each."""
    group, topic = require(visit, "group"), require(visit, "topic")
    if not visit.done:
        offsets = await visit.admin.groups.reset_offset(group, topic, _reset_time(visit))
        visit.done.update(
            {f"{each.broker_name} {each.queue_id}": offset for each, offset in offsets.items()}
        )
    found = visit.done.get(step.target)
    return None if found is None else str(found)


def _find_group(snapshot: Snapshot, name: str) -> GroupView:
    found = snapshot.groups.get(name)
    if found is None:
        raise NotFoundError(name)
    return found


def _reset_time(visit: Visit) -> int:
    text = require(visit, "when")
    if text == "now":
        return _END
    try:
        return parse_moment(text, now_ms=time.time_ns() // 1_000_000)
    except ValueError:
        raise BadInputError(visit.text("error.time", field="when")) from None


ACTIONS: Final = (
    Action(
        "create-group",
        (Field("group"), Field("retries", "16", is_number=True)),
        plan_creation,
        create,
    ),
    Action("delete-group", (Field("group"),), plan_deletion, delete, Role.ADMIN),
    Action("reset-offsets", (Field("group"), Field("topic"), Field("when")), plan_reset, reset),
)
