"""Commands that create, change and delete topics.

A change keeps values that the command line leaves out. A change that takes something away from the
users of a topic needs confirmation; see ``admin.confirm``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from rocketpost.admin.attribute_changes import parse_attributes, sign_attributes
from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    list_cluster_brokers,
    read_json_blocking,
    topic_option,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.losses import order_losses, order_queues
from rocketpost.admin.render import topic_text
from rocketpost.admin.report import Report
from rocketpost.admin.topic_change import (
    LISTED_QUEUES,
    PlannedTopic,
    apply_topic_change,
    check_order,
    find_topic,
    merge_topic,
    plan_topic,
    report_topic_change,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import TopicNotExist
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RouteNotFound
from rocketpost.model.topic import TopicChange, TopicConfig

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_POLL_SECONDS: Final = 0.05
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2

_QUEUES: Final = click.IntRange(1, 65536)
_PERMISSION: Final = click.IntRange(0, 7)


@admin_command("updateTopic")
@broker_or_cluster
@topic_option
@click.option("-r", "--readQueueNums", "readable", type=_QUEUES, help="8 for a new topic.")
@click.option("-w", "--writeQueueNums", "writable", type=_QUEUES, help="8 for a new topic.")
@click.option("-p", "--perm", type=_PERMISSION, help="2 write, 4 read, 6 both; 6 for a new topic.")
@click.option("-o", "--order", type=bool, help="Keep the queues in the order table.")
@click.option("-u", "--unit", type=bool, help="Mark as a topic of a unit.")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, help="The same, readers.")
@click.option("-a", "--attributes", default="", help="Changes: +name=value,-name")
@yes_option
@json_option
async def update_topic(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    readable: int | None,
    writable: int | None,
    perm: int | None,
    order: bool | None,
    unit: bool | None,
    unit_sub: bool | None,
    attributes: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Create a topic, or change only the given values of one."""
    change = TopicChange(
        topic_name=topic,
        read_queue_nums=readable,
        write_queue_nums=writable,
        perm=perm,
        order=order,
        attributes=parse_attributes(attributes),
    )
    plans = []
    for address in await find_masters(admin, broker, cluster):
        before = await find_topic(admin, address, topic)
        after = _with_units(merge_topic(address, before, change), unit=unit, unit_sub=unit_sub)
        plans.append(await plan_topic(admin, address, before, after))
    await confirm([loss for planned in plans for loss in planned.losses], yes=yes)
    ordered = await _needs_order_table(admin, plans, order)
    # The order table is written first, because brokers take the flag from it when they register.
    # But producers must not learn of queues that do not exist yet.
    first = ordered and not any(_is_widened(planned) for planned in plans)
    with Report(as_json=as_json) as report:
        if first:
            await _order_queues(admin, plans, report, broker=broker, cluster=cluster)
        await _apply_plans(admin, plans, report, yes=yes)
        if ordered and not first:
            await _order_queues(admin, plans, report, broker=broker, cluster=cluster)
        if order is False and await admin.cluster.kv(ORDER_NAMESPACE, topic) is not None:
            click.echo(
                f"note: the order table of the name servers still has {topic}, so brokers mark it "
                f"as ordered again; `mqadmin updateOrderConf -t {topic} -m delete` ends that",
                err=True,
            )
        for text in dict.fromkeys(topic_text(planned.after) for planned in plans):
            report.line(text)


def _with_units(config: TopicConfig, *, unit: bool | None, unit_sub: bool | None) -> TopicConfig:
    flag = config.topic_sys_flag
    for bit, wanted in ((_UNIT, unit), (_UNIT_SUBSCRIPTION, unit_sub)):
        if wanted is not None:
            flag = flag | bit if wanted else flag & ~bit
    return msgspec.structs.replace(config, topic_sys_flag=flag)


async def _apply_plans(
    admin: AdminClient, plans: Sequence[PlannedTopic], report: Report, *, yes: bool
) -> None:
    """Apply confirmed changes, and wait until name servers show them."""
    for planned in plans:
        if planned.is_change:
            await apply_topic_change(admin, planned, force=yes or bool(planned.losses))
        report_topic_change(report, planned)
    await map_concurrently(plans, lambda each: wait_routed(admin, each.after, [each.address]))


async def wait_routed(admin: AdminClient, config: TopicConfig, masters: Sequence[str]) -> None:
    """Wait until a name server shows the new configuration; print a note if it takes too long.

    Brokers register a moment later, so the next command of a script would find nothing.
    """
    known = {each.master for _, each in await list_cluster_brokers(admin, None)}
    expected = known & set(masters)
    try:
        async with asyncio.timeout(admin.config.call_timeout):
            # Name servers announce no changes, so there is no event to wait for.
            while not expected <= await _find_registered(admin, config):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        click.echo(f"note: the name servers do not show the new {config.topic_name} yet", err=True)


async def _find_registered(admin: AdminClient, config: TopicConfig) -> set[str | None]:
    try:
        route = await admin.cluster.route(config.topic_name)
    except RouteNotFound:
        return set()
    wanted = config.read_queue_nums, config.write_queue_nums, config.perm
    names = {
        data.broker_name
        for data in route.queue_datas
        if (data.read_queue_nums, data.write_queue_nums, data.perm) == wanted
    }
    return {each.master for each in route.broker_datas if each.broker_name in names}


async def _needs_order_table(
    admin: AdminClient, plans: Sequence[PlannedTopic], order: bool | None
) -> bool:
    """Return whether the order table must change: on request, or for an ordered topic's queues."""
    if order is not None:
        return order
    changed = any(
        planned.before is None or planned.before.write_queue_nums != planned.after.write_queue_nums
        for planned in plans
    )
    topic = plans[0].after.topic_name
    return changed and await admin.cluster.kv(ORDER_NAMESPACE, topic) is not None


def _is_widened(planned: PlannedTopic) -> bool:
    before, after = planned.before, planned.after
    return before is not None and after.write_queue_nums > before.write_queue_nums


async def _order_queues(
    admin: AdminClient,
    plans: Sequence[PlannedTopic],
    report: Report,
    *,
    broker: str | None,
    cluster: str | None,
) -> None:
    topic = plans[0].after.topic_name
    counts = {planned.address: planned.after.write_queue_nums for planned in plans}
    queues = {
        each.broker_name: f"{each.broker_name}:{counts[each.master]}"
        for _, each in await list_cluster_brokers(admin, cluster)
        if each.master in counts
    }
    if not queues:
        raise Failure(f"no name server knows a master at {broker}; the order table is unchanged")
    old = await admin.cluster.kv(ORDER_NAMESPACE, topic)
    if broker is not None:
        kept = {part.partition(":")[0]: part for part in (old or "").split(";") if part}
        queues = kept | queues
    value = ";".join(queues.values())
    await admin.cluster.put_kv(ORDER_NAMESPACE, topic, value)
    scope = "cluster" if broker is None else "broker"
    report.step(
        f"set {scope} orderConf. isOrder=true, orderConf=[{value}]",
        topic=topic,
        action="ordered",
        before=old,
        after=value,
    )


class _ListedTopic(TopicChange, frozen=True, forbid_unknown_fields=True):
    """A topic in a file. A misspelt key would otherwise leave a value at its default."""


@admin_command("updateTopicList")
@broker_or_cluster
@click.option("-f", "--filename", "path", required=True, help="JSON array of topic configurations.")
@yes_option
@json_option
async def update_topic_list(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    path: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Create or change the topics in a JSON file; values that it leaves out stay."""
    changes: list[TopicChange] = await asyncio.to_thread(
        read_json_blocking, path, list[_ListedTopic]
    )
    if not changes or not all(change.topic_name for change in changes):
        raise Failure(f"{path} lists no topic, or one without topicName")
    changes = [
        msgspec.structs.replace(change, attributes=sign_attributes(change.attributes))
        for change in changes
    ]
    plans: dict[str, list[PlannedTopic]] = {}
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            table = (await admin.topics.table(address)).topic_config_table
        plans[address] = [
            await plan_topic(
                admin,
                address,
                table.get(change.topic_name),
                merge_topic(address, table.get(change.topic_name), change, queues=LISTED_QUEUES),
            )
            for change in changes
        ]
    every = [planned for planned_here in plans.values() for planned in planned_here]
    await confirm([loss for planned in every for loss in planned.losses], yes=yes)
    with Report(as_json=as_json) as report:
        for address in plans:
            with errors_from(address):
                force = yes or any(planned.losses for planned in plans[address])
                wanted = [
                    _complete_change(planned, change)
                    for planned, change in zip(plans[address], changes, strict=True)
                ]
                await admin.topics.put_many(address, wanted, force=force)
            report.line(f"submit batch of topic config to {address} success.")
            for planned in plans[address]:
                report_topic_change(report, planned, listed=True)
        await map_concurrently(every, lambda each: wait_routed(admin, each.after, [each.address]))


def _complete_change(planned: PlannedTopic, change: TopicChange) -> TopicChange:
    """Return a change with every value of the planned topic, and the attributes of ``change``."""
    members = msgspec.structs.asdict(planned.after) | {"attributes": change.attributes}
    return TopicChange(**members)


@admin_command("updateTopicPerm")
@broker_or_cluster
@topic_option
@click.option("-p", "--perm", type=_PERMISSION, required=True, help="2 write, 4 read, 6 both.")
@yes_option
@json_option
async def update_topic_perm(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    perm: int,
    yes: bool,
    as_json: bool,
) -> None:
    """Change only the permission of a topic."""
    plans = []
    for address in await find_masters(admin, broker, cluster):
        before = await find_topic(admin, address, topic)
        if before is not None:
            after = msgspec.structs.replace(before, perm=perm)
            plans.append(await plan_topic(admin, address, before, after))
    if not plans:
        raise TopicNotExist(f"{broker or cluster} does not have the topic {topic}")
    await confirm([loss for planned in plans for loss in planned.losses], yes=yes)
    with Report(as_json=as_json) as report:
        for planned in plans:
            await _set_perm(admin, planned, report, perm)
            if broker is not None:
                report.line(f"{topic_text(planned.after)}.")


async def _set_perm(admin: AdminClient, planned: PlannedTopic, report: Report, perm: int) -> None:
    address, before, after, _ = planned
    assert before is not None
    members = {"broker": address, "topic": after.topic_name, "before": before.perm, "after": perm}
    if not planned.is_change:
        report.step("new perm equals to the old one!", action="unchanged", **members)
        return
    await apply_topic_change(admin, planned, force=False)
    await wait_routed(admin, after, [address])
    text = f"update topic perm from {before.perm} to {perm} in {address} success."
    report.step(text, action="changed", **members)


@admin_command("deleteTopic")
@topic_option
@click.option(
    "-c", "--clusterName", "cluster", required=True, help="The cluster to delete it from."
)
@yes_option
@json_option
async def delete_topic(
    admin: AdminClient, *, topic: str, cluster: str, yes: bool, as_json: bool
) -> None:
    """Delete a topic on the masters of a cluster and on every name server."""
    masters = await find_masters(admin, None, cluster)
    known = topic in await admin.cluster.topics()
    owners = [each for each in masters if await find_topic(admin, each, topic) is not None]
    count = await count_messages(admin, topic, masters)
    losses = [f"this deletes {count} messages of the topic {topic} for good"] if count else []
    await confirm(losses, yes=yes)
    with Report(as_json=as_json) as report:
        await admin.topics.delete(topic, masters, cluster=cluster)
        # Only now: an earlier deletion may have missed a name server that was down.
        if not known and not owners:
            raise TopicNotExist(f"there was no topic {topic} in the cluster {cluster}")
        text = f"delete topic [{topic}] from cluster [{cluster}] success."
        report.step(text, topic=topic, action="deleted", brokers=masters, messages=count)
        report.line(f"delete topic [{topic}] from NameServer success.")
    if not known:
        click.echo(f"note: no name server knew the topic {topic}", err=True)


async def count_messages(admin: AdminClient, topic: str, masters: Sequence[str]) -> int:
    """Return the number of messages of a topic on some brokers; 0 for those that lack it."""
    count = 0
    for address in masters:
        try:
            with errors_from(address, except_for=TopicNotExist):
                state = await admin.topics.state_at(address, topic)
        except TopicNotExist:
            continue
        count += sum(each.max_offset - each.min_offset for each in state.queues.values())
    return count


@admin_command("updateOrderConf")
@topic_option
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True)
@click.option("-v", "--orderConf", "value", help="For put: broker-a:4;broker-b:4")
@yes_option
@json_option
async def update_order_conf(
    admin: AdminClient, *, topic: str, method: str, value: str | None, yes: bool, as_json: bool
) -> None:
    """Read or change the queues of an ordered topic in the name servers' table."""
    if method == "put" and not value:
        raise click.UsageError("put needs -v, such as -v broker-a:4")
    old = await admin.cluster.kv(ORDER_NAMESPACE, topic)
    if method == "put":
        assert value
        route = await admin.cluster.route(topic)
        # A broker that is down keeps its queues, so that keys do not move to others meanwhile.
        known = {each.broker_name for each in route.broker_datas} | order_queues(old).keys()
        check_order(topic, value, known)
    if method != "get":
        await confirm(order_losses(old, value if method == "put" else None), yes=yes)
    with Report(as_json=as_json) as report:
        if method == "put":
            assert value
            await admin.cluster.put_kv(ORDER_NAMESPACE, topic, value)
            text = f"update orderConf success. topic=[{topic}], orderConf=[{value}]"
            report.step(text, topic=topic, action="put", before=old, after=value)
        elif method == "get":
            if old is None:
                raise Failure(f"the topic {topic} has no order configuration; set one with -m put")
            text = f"get orderConf success. topic=[{topic}], orderConf=[{old}]"
            report.step(text, topic=topic, orderConf=old)
        else:
            await admin.cluster.delete_kv(ORDER_NAMESPACE, topic)
            text = f"delete orderConf success. topic=[{topic}]"
            report.step(text, topic=topic, action="deleted", before=old)


COMMANDS: Final = [
    update_topic,
    update_topic_list,
    update_topic_perm,
    delete_topic,
    update_order_conf,
]
