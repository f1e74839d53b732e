"""Actions on topics: create, change, delete."""

from __future__ import annotations

from typing import Final

from rocketpost.codec.faults import TopicNotExist
from rocketpost.console.access.users import Role
from rocketpost.console.actions.action import Action, Field, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.lookup import find_master, find_topic, masters
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.model.names import is_system_topic, topic_problem
from rocketpost.model.topic import TopicConfig, perm_text

_QUEUES_MAX: Final = 1024
_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_PERMS: Final = {"6": 6, "4": 4, "2": 2}


async def plan_creation(visit: Visit) -> Plan:
    """Plan a new topic on all masters.

    Raises:
        BadInputError: The name is illegal, or the topic exists.
    """
    topic = require(visit, "topic")
    if problem := topic_problem(topic):
        raise BadInputError(problem)
    snapshot = await visit.cluster.collector.fresh_snapshot()
    if topic in snapshot.topics:
        raise BadInputError(visit.text("action.exists", name=topic))
    config = _new_config(visit, topic)
    cluster = next(iter(snapshot.clusters), "")
    count = config.write_queue_nums
    words = ["-t", topic, "-c", cluster, "-r", count, "-w", count]
    if config.attributes:
        words += ["-a", f"+message.type={config.attributes['message.type']}"]
    return Plan(
        action="create-topic",
        title=visit.text("action.create_topic"),
        steps=[
            Step(target=each.name, after=_describe(config))
            for each in masters(snapshot)
            if each.cluster == cluster
        ],
        undo=visit.text("action.undo_create"),
        command=visit.command("updateTopic", *words),
    )


async def create(visit: Visit, plan: Plan, step: Step) -> str:
    """Create the topic on one broker."""
    snapshot = visit.cluster.collector.snapshot
    broker = find_master(snapshot, step.target)
    await visit.admin.topics.create(broker.address, _new_config(visit, require(visit, "topic")))
    return step.after


async def plan_change(visit: Visit) -> Plan:
    """Plan other numbers of queues or another permission of a topic."""
    topic = require(visit, "topic")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    view = find_topic(snapshot, topic)
    read, write, perm = _wishes(visit, view.read_queues, view.write_queues, view.perm)
    steps = []
    for name in sorted(view.brokers):
        before = await visit.admin.topics.config(find_master(snapshot, name).address, topic)
        after = f"{read} / {write} {perm_text(perm)}"
        steps.append(Step(target=name, before=_describe(before), after=after))
    risks = []
    if not perm & 2:
        risks.append(visit.text("action.risk_no_writes"))
    if not perm & 4:
        risks.append(visit.text("action.risk_no_reads"))
    words = ["-t", topic, "-c", next(iter(snapshot.clusters), ""), "-r", read, "-w", write]
    return Plan(
        action="change-topic",
        title=visit.text("action.change_topic"),
        steps=steps,
        risks=risks,
        undo=visit.text("action.undo_change"),
        typed=topic if risks else "",
        command=visit.command("updateTopic", *words, "-p", perm),
    )


async def change(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Change the topic on one broker, which refuses to hide messages."""
    if step.before == step.after:
        return None
    topic = require(visit, "topic")
    snapshot = visit.cluster.collector.snapshot
    view = find_topic(snapshot, topic)
    read, write, perm = _wishes(visit, view.read_queues, view.write_queues, view.perm)
    after = await visit.admin.topics.update(
        find_master(snapshot, step.target).address,
        topic,
        read_queue_nums=read,
        write_queue_nums=write,
        perm=perm,
    )
    return _describe(after)


async def plan_deletion(visit: Visit) -> Plan:
    """Plan the end of a topic.

    Raises:
        BadInputError: Brokers do not delete it.
    """
    topic = require(visit, "topic")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    view = find_topic(snapshot, topic)
    steps = []
    for name in sorted(view.brokers):
        address = find_master(snapshot, name).address
        if is_system_topic(topic) or topic in await visit.admin.topics.system_topics(address):
            raise BadInputError(visit.text("action.system_topic", name=topic))
        state = await visit.admin.topics.state_at(address, topic)
        count = sum(each.max_offset - each.min_offset for each in state.queues.values())
        steps.append(Step(target=name, before=visit.text("action.messages", count=count)))
    risks = [visit.text("action.risk_messages")]
    if view.groups:
        risks.append(visit.text("action.risk_groups", names=", ".join(sorted(view.groups)[:10])))
    return Plan(
        action="delete-topic",
        title=visit.text("action.delete_topic"),
        steps=steps,
        risks=risks,
        is_reversible=False,
        typed=topic,
        role=Role.ADMIN,
        command=visit.command("deleteTopic", "-t", topic, "-c", next(iter(snapshot.clusters), "")),
    )


async def delete(visit: Visit, plan: Plan, step: Step) -> str | None:
    """Delete the topic on one broker and on the name servers."""
    topic = require(visit, "topic")
    broker = find_master(visit.cluster.collector.snapshot, step.target)
    try:
        await visit.admin.topics.config(broker.address, topic)
    except TopicNotExist:
        return None
    await visit.admin.topics.delete(topic, [broker.address], cluster=broker.cluster)
    return visit.text("action.deleted")


def _wishes(visit: Visit, read: int, write: int, perm: int) -> tuple[int, int, int]:
    return (
        visit.number("read_queues", read, 1, _QUEUES_MAX),
        visit.number("write_queues", write, 1, _QUEUES_MAX),
        _PERMS.get(visit.query("perm"), perm),
    )


def _new_config(visit: Visit, topic: str) -> TopicConfig:
    count = visit.number("queues", 8, 1, _QUEUES_MAX)
    kind = visit.choice("type", _TYPES)
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=count,
        write_queue_nums=count,
        attributes={} if kind == "NORMAL" else {"message.type": kind},
    )


def _describe(config: TopicConfig) -> str:
    kind = config.attributes.get("message.type", "")
    text = f"{config.read_queue_nums} / {config.write_queue_nums} {perm_text(config.perm)}"
    return f"{text} {kind}".rstrip()


ACTIONS: Final = (
    Action(
        "create-topic",
        (Field("topic"), Field("queues", "8", is_number=True), Field("type", "NORMAL", _TYPES)),
        plan_creation,
        create,
    ),
    Action(
        "change-topic",
        (
            Field("topic"),
            Field("read_queues", is_number=True, is_required=False),
            Field("write_queues", is_number=True, is_required=False),
            Field("perm", "6", tuple(_PERMS)),
        ),
        plan_change,
        change,
    ),
    Action("delete-topic", (Field("topic"),), plan_deletion, delete, Role.ADMIN),
)
