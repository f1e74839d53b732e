"""Topics: create, change, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from rocketpost.admin.command import (
    Failure,
    admin_command,
    asking,
    broker_or_cluster,
    brokers_in,
    few_at_once,
    masters_of,
    read_json_blocking,
    say,
    topic_option,
)
from rocketpost.admin.render import topic_text
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import TopicNotExist
from rocketpost.errors import RouteNotFound
from rocketpost.model.topic import TopicConfig

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_POLL_SECONDS: Final = 0.05
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
    masters = await masters_of(admin, broker, cluster)
    for address in masters:
        with asking(address):
            await admin.topics.create(address, config)
        say(f"create topic to {address} success.")
    await until_routed(admin, config, masters)
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


async def until_routed(admin: AdminClient, config: TopicConfig, masters: Sequence[str]) -> None:
    """Return when a name server shows what brokers were told, or say that it does not yet.

    Brokers tell name servers a moment later; a script's next command would find nothing.
    """
    known = {each.master for _, each in await brokers_in(admin, None)}
    expected = known & set(masters)
    try:
        async with asyncio.timeout(admin.config.call_timeout):
            # Name servers tell nobody of changes, so there is no event to wait for.
            while not expected <= await _shown_at(admin, config):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        click.echo(f"note: the name servers do not show {config.topic_name} so yet", err=True)


async def _shown_at(admin: AdminClient, config: TopicConfig) -> set[str | None]:
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
    configs: list[TopicConfig] = await asyncio.to_thread(
        read_json_blocking, path, list[TopicConfig]
    )
    if not configs or not all(config.topic_name for config in configs):
        raise Failure(f"{path} lists no topic, or one without topicName")
    masters = await masters_of(admin, broker, cluster)
    for address in masters:
        with asking(address):
            await admin.topics.create_many(address, configs)
        say(f"submit batch of topic config to {address} success, please check the result later.")
    await few_at_once(configs, lambda config: until_routed(admin, config, masters))


@admin_command("updateTopicPerm")
@broker_or_cluster
@topic_option
@click.option("-p", "--perm", type=_PERMISSION, required=True, help="2 write, 4 read, 6 both.")
async def update_topic_perm(
    admin: AdminClient, *, broker: str | None, cluster: str | None, topic: str, perm: int
) -> None:
    """Change the permission of a topic and nothing else."""
    found = False
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            try:
                old = await admin.topics.config(address, topic)
            except TopicNotExist:
                continue
            found = True
            new = msgspec.structs.replace(old, perm=perm)
            if new == old:
                say("new perm equals to the old one!")
                continue
            await admin.topics.create(address, msgspec.structs.replace(new, attributes={}))
        await until_routed(admin, new, [address])
        say(f"update topic perm from {old.perm} to {perm} in {address} success.")
        if broker is not None:
            say(f"{topic_text(new)}.")
    if not found:
        raise TopicNotExist(f"{broker or cluster} does not have the topic {topic}")


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


COMMANDS: Final = [
    update_topic,
    update_topic_list,
    update_topic_perm,
    delete_topic,
    update_order_conf,
]
