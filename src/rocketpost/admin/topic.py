"""Topics: create, change, delete, look at."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from rocketpost.admin.command import (
    Failure,
    admin_command,
    asking,
    broker_or_cluster,
    brokers_in,
    cluster_hint,
    few_at_once,
    json_option,
    masters_of,
    read_json_file,
    say,
    say_json,
    show_rows,
    topic_option,
)
from rocketpost.admin.render import Column, Table, fastjson_text, time_or, topic_text
from rocketpost.client.admin import AdminClient
from rocketpost.client.allocation import Average
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.model.names import is_retry_or_dlq
from rocketpost.model.route import TopicRoute
from rocketpost.model.topic import TopicConfig

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2

_QUEUES: Final = click.IntRange(1, 65536)
_PERMISSION: Final = click.IntRange(0, 7)


# Create, change, delete.


@admin_command("updateTopic")
@broker_or_cluster
@topic_option
@click.option("-r", "--readQueueNums", "readable", type=_QUEUES, default=8, show_default=True)
@click.option("-w", "--writeQueueNums", "writable", type=_QUEUES, default=8, show_default=True)
@click.option(
    "-p", "--perm", type=_PERMISSION, default=6, help="2 write, 4 read, 6 both (default)."
)
@click.option("-o", "--order", type=bool, default=False, help="Keep the queues in the order table.")
@click.option("-u", "--unit", type=bool, default=False, help="Mark as a topic of a unit.")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, default=False, help="The same, readers.")
@click.option("-a", "--attributes", default="", help="Changes: +name=value,-name")
async def update_topic(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    readable: int,
    writable: int,
    perm: int,
    order: bool,
    unit: bool,
    unit_sub: bool,
    attributes: str,
) -> None:
    """Create or change a topic."""
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=readable,
        write_queue_nums=writable,
        perm=perm,
        order=order,
        topic_sys_flag=_UNIT * unit | _UNIT_SUBSCRIPTION * unit_sub,
        attributes=parse_attributes(attributes),
    )
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            await admin.topics.create(address, config)
        say(f"create topic to {address} success.")
    if order:
        await _order_queues(admin, config, broker=broker, cluster=cluster)
    say(topic_text(config))


def parse_attributes(text: str) -> dict[str, str]:
    """Read ``+name=value,-name``.

    Raises:
        BadParameter: It is something else.
    """
    changes: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if part[0] not in "+-" or len(name) < 2 or (part[0] == "+") != bool(equals):
            raise click.BadParameter(f"{part!r} is neither +name=value nor -name")
        changes[name] = value
    return changes


async def _order_queues(
    admin: AdminClient, config: TopicConfig, *, broker: str | None, cluster: str | None
) -> None:
    named = [
        each.broker_name
        for _, each in await brokers_in(admin, cluster)
        if broker is None or each.master == broker
    ]
    if not named:
        raise Failure(f"no name server knows a master at {broker}; the order table is unchanged")
    queues = {name: f"{name}:{config.write_queue_nums}" for name in named}
    if broker is not None:
        old = await admin.cluster.kv(ORDER_NAMESPACE, config.topic_name) or ""
        kept = {part.partition(":")[0]: part for part in old.split(";") if part}
        queues = kept | queues
    value = ";".join(queues.values())
    await admin.cluster.put_kv(ORDER_NAMESPACE, config.topic_name, value)
    scope = "cluster" if broker is None else "broker"
    say(f"set {scope} orderConf. isOrder=true, orderConf=[{value}]")


@admin_command("updateTopicList")
@broker_or_cluster
@click.option("-f", "--filename", "path", required=True, help="JSON array of topic configurations.")
async def update_topic_list(
    admin: AdminClient, *, broker: str | None, cluster: str | None, path: str
) -> None:
    """Create or change the topics that a JSON file lists."""
    configs: list[TopicConfig] = read_json_file(path, list[TopicConfig])
    if not configs or not all(config.topic_name for config in configs):
        raise Failure(f"{path} lists no topic, or one without topicName")
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            await admin.topics.create_many(address, configs)
        say(f"submit batch of topic config to {address} success, please check the result later.")


@admin_command("updateTopicPerm")
@broker_or_cluster
@topic_option
@click.option("-p", "--perm", type=_PERMISSION, required=True, help="2 write, 4 read, 6 both.")
async def update_topic_perm(
    admin: AdminClient, *, broker: str | None, cluster: str | None, topic: str, perm: int
) -> None:
    """Change the permission of a topic and nothing else."""
    chosen = await masters_of(admin, broker, cluster)
    route = await admin.cluster.route(topic)
    holders = [each.master for each in route.broker_datas if each.master in chosen]
    if not holders:
        raise Failure(
            f"{broker or cluster} holds no master of {topic}; `mqadmin topicRoute -t {topic}` "
            "shows where it is"
        )
    for address in filter(None, holders):
        with asking(address):
            old = await admin.topics.config(address, topic)
            new = msgspec.structs.replace(old, perm=perm)
            if new == old:
                say("new perm equals to the old one!")
                continue
            await admin.topics.create(address, msgspec.structs.replace(new, attributes={}))
        say(f"update topic perm from {old.perm} to {perm} in {address} success.")
        if broker is not None:
            say(f"{topic_text(new)}.")


@admin_command("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="The cluster that loses it.")
async def delete_topic(admin: AdminClient, *, topic: str, cluster: str) -> None:
    """Delete a topic on the masters of a cluster and with every name server."""
    masters = await masters_of(admin, None, cluster)
    known = topic in await admin.cluster.topics()
    await admin.topics.delete(topic, masters, cluster=cluster)
    say(f"delete topic [{topic}] from cluster [{cluster}] success.")
    say(f"delete topic [{topic}] from NameServer success.")
    if not known:
        click.echo(f"note: no name server knew the topic {topic}", err=True)


# Look at.

_TOPICS: Final = Table(
    "%-20s  %-64s  %-64s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Topic", "topic"),
        Column("#Consumer Group", "group"),
    ],
)


@admin_command("topicList")
@click.option("-c", "--clusterModel", "by_cluster", is_flag=True, help="Show clusters and groups.")
@json_option
async def topic_list(admin: AdminClient, *, by_cluster: bool, as_json: bool) -> None:
    """List all topics."""
    topics = sorted(await admin.cluster.topics())
    if by_cluster:
        shown = [topic for topic in topics if not is_retry_or_dlq(topic)]
        found = await few_at_once(shown, lambda topic: _clusters_and_groups(admin, topic))
        rows = [row for rows in found for row in rows]
        show_rows(_TOPICS, rows, as_json=as_json)
    elif as_json:
        say_json(topics)
    else:
        for topic in topics:
            say(topic)


async def _clusters_and_groups(admin: AdminClient, topic: str) -> list[tuple[str, str, str]]:
    route = await admin.cluster.route(topic)
    clusters = sorted({each.cluster for each in route.broker_datas})
    groups = sorted(await admin.topics.groups_of(topic)) or [""]
    return [(cluster, topic, group) for cluster in clusters for group in groups]


_ROUTE: Final = Table(
    "%-45s %-32s %-50s %-10s %-11s %-5s",
    [
        Column("#ClusterName", "cluster"),
        Column("#BrokerName", "brokerName"),
        Column("#BrokerAddrs", "brokerAddrs", lambda addresses: _addresses_text(addresses)),
        Column("#ReadQueue", "readQueueNums"),
        Column("#WriteQueue", "writeQueueNums"),
        Column("#Perm", "perm"),
    ],
)


def _addresses_text(addresses: dict[int, str] | str) -> str:
    if isinstance(addresses, str):
        return addresses
    return "{" + ", ".join(f"{key}={addresses[key]}" for key in sorted(addresses)) + "}"


@admin_command("topicRoute")
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="A table instead of JSON.")
@json_option
async def topic_route(admin: AdminClient, *, topic: str, as_list: bool, as_json: bool) -> None:
    """Show which brokers serve a topic."""
    route = await admin.cluster.route(topic)
    if as_json:
        say_json(route_members(route))
    elif as_list:
        say(route_table(route))
    else:
        say(fastjson_text(route_members(route)))


def route_members(route: TopicRoute) -> dict[str, object]:
    """Return a route as plain values, members in the order in which Java prints them."""
    members: dict[str, object] = {
        "brokerDatas": msgspec.to_builtins(route.broker_datas),
        "filterServerTable": msgspec.to_builtins(route.filter_server_table),
    }
    if route.order_topic_conf is not None:
        members["orderTopicConf"] = route.order_topic_conf
    members["queueDatas"] = msgspec.to_builtins(route.queue_datas)
    return members


def route_table(route: TopicRoute) -> str:
    """Return a route as a table with totals."""
    brokers = {each.broker_name: each for each in route.broker_datas}
    rows = [
        (
            brokers[data.broker_name].cluster if data.broker_name in brokers else "",
            data.broker_name,
            brokers[data.broker_name].broker_addrs if data.broker_name in brokers else {},
            data.read_queue_nums,
            data.write_queue_nums,
            data.perm,
        )
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
    readable = sum(data.read_queue_nums for data in route.queue_datas)
    writable = sum(data.write_queue_nums for data in route.queue_datas)
    total = _ROUTE.line(("Total:", len(rows), "", readable, writable, ""))
    return "\n".join([_ROUTE.text(rows), "-" * len(total), total])


_STATUS: Final = Table(
    "%-32s  %-4s  %-20s  %-20s    %s",
    [
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Min Offset", "minOffset"),
        Column("#Max Offset", "maxOffset"),
        Column("#Last Updated", "lastUpdateTimestamp", lambda ms: time_or(ms, "", millis=True)),
    ],
)


@admin_command("topicStatus")
@topic_option
@cluster_hint
@json_option
async def topic_status(admin: AdminClient, *, topic: str, as_json: bool) -> None:
    """Show the offsets of every queue of a topic."""
    state = await admin.topics.state(topic)
    rows = [
        (
            queue.broker_name,
            queue.queue_id,
            state.queues[queue].min_offset,
            state.queues[queue].max_offset,
            state.queues[queue].last_update_timestamp,
        )
        for queue in sorted(state.queues, key=lambda queue: queue.sort_key)
    ]
    if as_json:
        say_json({"queues": _STATUS.objects(rows), "putTps": state.put_tps})
        return
    say(_STATUS.text(rows))
    say()
    say(f"Topic Put TPS: {state.put_tps}")


@admin_command("topicClusterList")
@topic_option
@json_option
async def topic_cluster_list(admin: AdminClient, *, topic: str, as_json: bool) -> None:
    """List the clusters that serve a topic."""
    route = await admin.cluster.route(topic)
    clusters = sorted({each.cluster for each in route.broker_datas})
    if as_json:
        say_json(clusters)
        return
    for cluster in clusters:
        say(cluster)


@admin_command("updateOrderConf")
@topic_option
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True)
@click.option("-v", "--orderConf", "value", help="For put: broker-a:4;broker-b:4")
async def update_order_conf(
    admin: AdminClient, *, topic: str, method: str, value: str | None
) -> None:
    """Read or change the queues of an ordered topic in the name servers' table."""
    if method == "put":
        if not value:
            raise click.UsageError("put needs -v, such as -v broker-a:4")
        await admin.cluster.put_kv(ORDER_NAMESPACE, topic, value)
        say(f"update orderConf success. topic=[{topic}], orderConf=[{value}]")
    elif method == "get":
        found = await admin.cluster.kv(ORDER_NAMESPACE, topic)
        if found is None:
            raise Failure(f"the topic {topic} has no order configuration; set one with -m put")
        say(f"get orderConf success. topic=[{topic}], orderConf=[{found}]")
    else:
        await admin.cluster.delete_kv(ORDER_NAMESPACE, topic)
        say(f"delete orderConf success. topic=[{topic}]")


@admin_command("allocateMQ")
@topic_option
@click.option("-i", "--ipList", "members", required=True, help="Consumers: 10.0.0.1,10.0.0.2")
async def allocate_mq(admin: AdminClient, *, topic: str, members: str) -> None:
    """Show how the average strategy would share out a topic's queues."""
    names = sorted({name.strip() for name in members.split(",")} - {""})
    if not names:
        raise click.UsageError("-i lists no consumer")
    queues = subscribe_queues(topic, await admin.cluster.route(topic))
    shares = {name: Average()(name, queues, names) for name in names}
    say(msgspec.json.encode({"result": shares}).decode())


COMMANDS: Final = [
    update_topic,
    update_topic_list,
    update_topic_perm,
    delete_topic,
    topic_list,
    topic_route,
    topic_status,
    topic_cluster_list,
    update_order_conf,
    allocate_mq,
]
