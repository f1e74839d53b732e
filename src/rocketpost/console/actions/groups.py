"""Actions on consumer groups: create, change, delete, mode of consumption."""

from __future__ import annotations

from typing import Any, Final

from rocketpost.codec.bodies.assignment import RequestMode
from rocketpost.console.access.users import Role
from rocketpost.console.actions.action import Action, Field, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.lookup import find_group, find_master, find_topic, masters
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import group_problem

_MODES: Final = ("PULL", "POP")


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
    group = find_group(snapshot, require(visit, "group"))
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


async def plan_change(visit: Visit) -> Plan:
    """Plan other settings of a group on all its brokers."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    group = find_group(snapshot, require(visit, "group"))
    wishes = _wishes(visit)
    if not wishes:
        raise BadInputError(visit.text("action.nothing"))
    steps = []
    for name in sorted(group.brokers):
        config = await visit.admin.groups.config(find_master(snapshot, name).address, group.name)
        before = {key: getattr(config, key) for key in wishes}
        steps.append(Step(target=name, before=_words(before), after=_words(wishes)))
    words = {
        "-r": wishes.get("retry_max_times"),
        "-s": wishes.get("consume_enable"),
        "-d": wishes.get("consume_broadcast_enable"),
    }
    given = [str(part).lower() for pair in words.items() if pair[1] is not None for part in pair]
    is_stopping = wishes.get("consume_enable") is False
    return Plan(
        action="change-group",
        title=visit.text("action.change_group"),
        steps=steps,
        risks=[visit.text("action.risk_stopped")] if is_stopping else [],
        undo=visit.text("action.undo_change"),
        typed=group.name if is_stopping else "",
        command=visit.command(
            "updateSubGroup", "-g", group.name, "-c", next(iter(snapshot.clusters), ""), *given
        ),
    )


async def change(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Change the group on one broker."""
    if step.before == step.after:
        return None
    broker, wishes = find_master(visit.cluster.collector.snapshot, step.target), _wishes(visit)
    after = await visit.admin.groups.update(
        broker.address,
        require(visit, "group"),
        consume_enable=wishes.get("consume_enable"),
        consume_broadcast_enable=wishes.get("consume_broadcast_enable"),
        retry_max_times=wishes.get("retry_max_times"),
    )
    return _words({key: getattr(after, key) for key in wishes})


async def plan_mode(visit: Visit) -> Plan:
    """Plan that brokers give messages of a topic to a group in another way."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    group, topic = require(visit, "group"), require(visit, "topic")
    mode, share = visit.choice("mode", _MODES), visit.number("share", 0, 0, 1000)
    steps = []
    for name in sorted(find_topic(snapshot, topic).brokers):
        modes = await visit.admin.groups.request_modes(find_master(snapshot, name).address)
        known = modes.get(topic, {}).get(group)
        before = "" if known is None else f"{known.mode} {known.pop_share_queue_num}"
        steps.append(Step(target=name, before=before, after=f"{mode} {share}"))
    return Plan(
        action="set-consume-mode",
        title=visit.text("action.set_consume_mode"),
        steps=steps,
        undo=visit.text("action.undo_change"),
        command=visit.command(
            "setConsumeMode", "-c", next(iter(snapshot.clusters), ""), "-t", topic, "-g", group,
            "-m", mode, "-q", share,
        ),
    )  # fmt: skip


async def set_mode(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Set the mode on one broker."""
    if step.before == step.after:
        return None
    mode = RequestMode(
        consumer_group=require(visit, "group"),
        topic=require(visit, "topic"),
        mode=visit.choice("mode", _MODES),
        pop_share_queue_num=visit.number("share", 0, 0, 1000),
    )
    address = find_master(visit.cluster.collector.snapshot, step.target).address
    await visit.admin.groups.set_request_mode(address, mode)
    return step.after


def _wishes(visit: Visit) -> dict[str, Any]:
    """Return the settings that a form changes; empty fields change nothing."""
    wishes: dict[str, Any] = {}
    for field, key in (("enabled", "consume_enable"), ("broadcast", "consume_broadcast_enable")):
        if visit.query(field) in ("yes", "no"):
            wishes[key] = visit.query(field) == "yes"
    if visit.query("retries"):
        wishes["retry_max_times"] = visit.number("retries", 16, 0, 1000)
    return wishes


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {str(value).lower()}" for key, value in values.items())


ACTIONS: Final = (
    Action(
        "create-group",
        (Field("group"), Field("retries", "16", is_number=True)),
        plan_creation,
        create,
    ),
    Action("delete-group", (Field("group"),), plan_deletion, delete, Role.ADMIN),
    Action(
        "change-group",
        (
            Field("group"),
            Field("enabled", "", ("", "yes", "no")),
            Field("broadcast", "", ("", "yes", "no")),
            Field("retries", "", is_number=True, is_required=False),
        ),
        plan_change,
        change,
    ),
    Action(
        "set-consume-mode",
        (
            Field("group"),
            Field("topic"),
            Field("mode", "PULL", _MODES),
            Field("share", "0", is_number=True),
        ),
        plan_mode,
        set_mode,
    ),
)
