"""Actions on brokers: change a setting, keep producers away and let them back, clean."""

from __future__ import annotations

from typing import Final

from rocketpost.admin.losses import can_cause_losses, setting_losses
from rocketpost.client.admin import AdminClient
from rocketpost.console.access.users import Role
from rocketpost.console.actions.action import Action, Field, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.bodies import is_secret_key
from rocketpost.console.collect.snapshot import BrokerView, Snapshot
from rocketpost.console.lookup import find_master, masters
from rocketpost.console.visit import BadInputError, Visit

ALL: Final = "*"
_CLEANERS: Final = {
    "expired-queues": ("cleanExpiredCQ", "clean_expired_queues"),
    "unused-topics": ("cleanUnusedTopic", "clean_unused_topics"),
    "expired-log": ("deleteExpiredCommitLog", "delete_expired_log"),
}


async def plan_setting(visit: Visit) -> Plan:
    """Plan another value of one setting, on a broker or on all.

    Raises:
        BadInputError: The brokers do not have the setting.
    """
    name, key, value = require(visit, "broker"), require(visit, "key"), visit.query("value")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    if is_secret_key(key):
        raise BadInputError(visit.text("action.secret", setting=key))
    steps, risks = [], []
    for broker in _targets(snapshot, name):
        config = await visit.admin.brokers.config(broker.address)
        if key not in config:
            raise BadInputError(visit.text("action.no_setting", setting=key, broker=broker.name))
        steps.append(Step(target=broker.name, before=config[key], after=value))
        if can_cause_losses(key):
            risks += [f"{broker.name}: {each}" for each in setting_losses(key, config[key], value)]
    place = ("-c", next(iter(snapshot.clusters), ""))
    if name != ALL:
        place = ("-b", find_master(snapshot, name).address)
    return Plan(
        action="change-setting",
        title=visit.text("action.change_setting"),
        steps=steps,
        risks=risks,
        undo=visit.text("action.undo_change"),
        typed=key if risks or len(steps) > 1 else "",
        command=visit.command("updateBrokerConfig", *place, "-k", key, "-v", value),
    )


async def change_setting(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Change the setting on one broker, and return the value that it has then."""
    if step.before == step.after:
        return None
    key = require(visit, "key")
    address = find_master(visit.cluster.collector.snapshot, step.target).address
    await visit.admin.brokers.update_config(address, {key: step.after})
    return (await visit.admin.brokers.config(address)).get(key, "")


async def plan_wiping(visit: Visit) -> Plan:
    """Plan to keep producers away from a broker, before it is stopped for example."""
    return await _plan_permission(visit, "wipe-write", "wipeWritePerm", is_wiping=True)


async def plan_adding(visit: Visit) -> Plan:
    """Plan to let producers use a broker again."""
    return await _plan_permission(visit, "add-write", "addWritePerm", is_wiping=False)


async def _plan_permission(visit: Visit, action: str, command: str, *, is_wiping: bool) -> Plan:
    snapshot = await visit.cluster.collector.fresh_snapshot()
    name = find_master(snapshot, require(visit, "broker")).name
    topics = sum(1 for each in snapshot.topics.values() if name in each.brokers)
    return Plan(
        action=action,
        title=visit.text(f"action.{action.replace('-', '_')}"),
        steps=[
            Step(target=each, after=visit.text("action.topics_of", count=topics, broker=name))
            for each in sorted(visit.admin.cluster.name_servers)
        ],
        risks=[visit.text("action.risk_wipe")] if is_wiping else [],
        undo=visit.text("action.undo_wipe" if is_wiping else "action.undo_add"),
        typed=name if is_wiping else "",
        command=visit.command(command, "-b", name),
    )


async def wipe(visit: Visit, plan: Plan, step: Step) -> str:
    """Remove the permission on all name servers at the first step; return the result of each."""
    return await _change_permission(visit, step, is_wiping=True)


async def add(visit: Visit, plan: Plan, step: Step) -> str:
    """Restore the permission on all name servers at the first step; return the result of each."""
    return await _change_permission(visit, step, is_wiping=False)


async def _change_permission(visit: Visit, step: Step, *, is_wiping: bool) -> str:
    name, cluster = require(visit, "broker"), visit.admin.cluster
    if not visit.done:
        change = cluster.wipe_write_perm if is_wiping else cluster.add_write_perm
        visit.done.update(await change(name))
    return visit.text("action.topics_of", count=visit.done.get(step.target, 0), broker=name)


async def plan_cleaning(visit: Visit) -> Plan:
    """Plan that a broker deletes now the files that it would delete later anyway."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    broker = find_master(snapshot, require(visit, "broker"))
    what = visit.choice("what", tuple(_CLEANERS))
    after = visit.text(f"action.clean_{what.replace('-', '_')}")
    return Plan(
        action="clean-broker",
        title=visit.text("action.clean_broker"),
        steps=[Step(target=broker.name, after=after)],
        is_reversible=False,
        typed=broker.name if what == "expired-log" else "",
        role=Role.ADMIN,
        command=visit.command(_CLEANERS[what][0], "-b", broker.address),
    )


async def clean(visit: Visit, plan: Plan, step: Step) -> str:
    """Make one broker clean."""
    address = find_master(visit.cluster.collector.snapshot, step.target).address
    admin: AdminClient = visit.admin
    await getattr(admin.brokers, _CLEANERS[visit.choice("what", tuple(_CLEANERS))][1])(address)
    return step.after


def _targets(snapshot: Snapshot, name: str) -> list[BrokerView]:
    return masters(snapshot) if name == ALL else [find_master(snapshot, name)]


_BROKER: Final = Field("broker")
ACTIONS: Final = (
    Action(
        "change-setting",
        (_BROKER, Field("key"), Field("value", is_required=False)),
        plan_setting,
        change_setting,
    ),
    Action("wipe-write", (_BROKER,), plan_wiping, wipe),
    Action("add-write", (_BROKER,), plan_adding, add),
    Action(
        "clean-broker",
        (_BROKER, Field("what", "expired-queues", tuple(_CLEANERS))),
        plan_cleaning,
        clean,
        Role.ADMIN,
    ),
)
