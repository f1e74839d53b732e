"""Commands that show topics: names, routes, offsets, configuration, queue assignment."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from rocketpost.admin.command import (
    admin_command,
    cluster_hint,
    errors_from,
    json_option,
    say,
    say_json,
    show_rows,
    topic_option,
)
from rocketpost.admin.render import (
    Column,
    Table,
    fastjson_text,
    flag_text,
    map_text,
    time_or,
)
from rocketpost.client.admin import AdminClient
from rocketpost.client.consumer.allocation import Average
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RouteNotFound
from rocketpost.model.names import is_retry_or_dlq
from rocketpost.model.route import TopicRoute
from rocketpost.model.topic import TopicConfig

_TOPICS: Final = Table(
    "%-20s  %-64s  %-64s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Topic", "topic"),
        Column("#Consumer Group", "group"),
    ],
)


@admin_command("topicList", is_watchable=True)
@click.option("-c", "--clusterModel", "by_cluster", is_flag=True, help="Show clusters and groups.")
@json_option
async def topic_list(admin: AdminClient, *, by_cluster: bool, as_json: bool) -> None:
    """List all topics."""
    topics = sorted(await admin.cluster.topics())
    if by_cluster:
        shown = [topic for topic in topics if not is_retry_or_dlq(topic)]
        found = await map_concurrently(shown, lambda topic: _clusters_and_groups(admin, topic))
        rows = [row for rows in found for row in rows]
        show_rows(_TOPICS, rows, as_json=as_json)
    elif as_json:
        say_json(topics)
    else:
        for topic in topics:
            say(topic)


async def _clusters_and_groups(admin: AdminClient, topic: str) -> list[tuple[str, str, str]]:
    try:
        route = await admin.cluster.route(topic)
        groups = sorted(await admin.topics.groups_of(topic)) or [""]
    except RouteNotFound:
        return []  # deleted after the list was made
    clusters = sorted({each.cluster for each in route.broker_datas})
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


@admin_command("topicRoute", is_watchable=True)
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
    """Return a route as plain values, members in Java's order."""
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


@admin_command("topicStatus", is_watchable=True)
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
    attributes = {
        name: config.attributes for name, config in (await _fetch_configs(admin, topic)).items()
    }
    if as_json:
        shown = {"queues": _STATUS.objects(rows), "putTps": state.put_tps, "attributes": attributes}
        say_json(shown)
        return
    say(_STATUS.text(rows))
    say()
    say(f"Topic Put TPS: {state.put_tps}")
    for name, values in attributes.items():
        if values:
            say(f"Attributes at {name}: {map_text(values)}")


_CONFIG: Final = Table(
    "%-32s  %-10s  %-11s  %-5s  %-6s  %s",
    [
        Column("#Broker Name", "brokerName"),
        Column("#ReadQueue", "readQueueNums"),
        Column("#WriteQueue", "writeQueueNums"),
        Column("#Perm", "perm"),
        Column("#Order", "order", flag_text),
        Column("#Attributes", "attributes", map_text),
    ],
)


@admin_command("topicConfig")
@topic_option
@json_option
async def topic_config(admin: AdminClient, *, topic: str, as_json: bool) -> None:
    """Show the configuration of a topic on every master, with its attributes."""
    configs = await _fetch_configs(admin, topic)
    if as_json:
        say_json(configs)
        return
    say(
        _CONFIG.text(
            (
                name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.order,
                config.attributes,
            )
            for name, config in configs.items()
        )
    )


async def _fetch_configs(admin: AdminClient, topic: str) -> dict[str, TopicConfig]:
    """Return the configuration of a topic on each broker, by its name."""
    found = {}
    route = await admin.cluster.route(topic)
    for each in sorted(route.broker_datas, key=lambda data: data.broker_name):
        if each.reader is not None:
            with errors_from(each.reader):
                found[each.broker_name] = await admin.topics.config(each.reader, topic)
    return found


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


@admin_command("allocateMQ")
@topic_option
@click.option("-i", "--ipList", "members", required=True, help="Consumers: 10.0.0.1,10.0.0.2")
@json_option
async def allocate_mq(admin: AdminClient, *, topic: str, members: str, as_json: bool) -> None:
    """Show how the average strategy would assign a topic's queues."""
    names = sorted({name.strip() for name in members.split(",")} - {""})
    if not names:
        raise click.UsageError("-i lists no consumer")
    queues = subscribe_queues(topic, await admin.cluster.route(topic))
    shares = {name: Average()(name, queues, names) for name in names}
    if as_json:
        say_json(shares)
    else:
        say(msgspec.json.encode({"result": shares}).decode())


COMMANDS: Final = [
    topic_list,
    topic_route,
    topic_status,
    topic_config,
    topic_cluster_list,
    allocate_mq,
]
