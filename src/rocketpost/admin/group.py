"""Consumer groups: create, change, delete, show their configuration, pull or pop."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click
import msgspec

from rocketpost.admin.command import (
    Failure,
    admin_command,
    asking,
    broker_or_cluster,
    brokers_in,
    json_option,
    masters_of,
    read_json_blocking,
    say,
    say_json,
)
from rocketpost.admin.render import group_fields, group_text
from rocketpost.admin.topic import parse_attributes
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.assignment import MODES, RequestMode
from rocketpost.codec.faults import GroupNotExist
from rocketpost.errors import ConfigError
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import dlq_topic, retry_topic
from rocketpost.model.retry_policy import read_retry_policy

_group = click.option("-g", "--groupName", "group", metavar="GROUP", required=True, help="Group.")


_FROM_MIN_NOTE: Final = (
    "consumeFromMinEnable has no effect, in RocketMQ neither: consumers say where a group starts"
)


@admin_command("updateSubGroup")
@broker_or_cluster
@_group
@click.option("-s", "--consumeEnable", "enabled", type=bool, default=True, help="May it consume?")
@click.option("-m", "--consumeFromMinEnable", "from_min", type=bool, help="Has no effect.")
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=bool, default=False)
@click.option("-o", "--consumeMessageOrderly", "orderly", type=bool, default=False)
@click.option("-q", "--retryQueueNums", "retry_queues", type=click.IntRange(0, 65536), default=1)
@click.option("-r", "--retryMaxTimes", "retries", type=int, default=16, show_default=True)
@click.option("-p", "--groupRetryPolicy", "policy", help='JSON, such as {"type":"EXPONENTIAL"}')
@click.option("-i", "--brokerId", "broker_id", type=int, default=0)
@click.option("-w", "--whichBrokerWhenConsumeSlowly", "slow_id", type=int, default=1)
@click.option("-a", "--notifyConsumerIdsChanged", "notify", type=bool, default=True)
@click.option("--attributes", default="", help="Changes: +name=value,-name")
async def update_sub_group(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    group: str,
    enabled: bool,
    from_min: bool | None,
    broadcast: bool,
    orderly: bool,
    retry_queues: int,
    retries: int,
    policy: str | None,
    broker_id: int,
    slow_id: int,
    notify: bool,
    attributes: str,
) -> None:
    """Create or change a consumer group."""
    if from_min is not None:
        click.echo(f"note: {_FROM_MIN_NOTE}", err=True)
    config = GroupConfig(
        group_name=group,
        consume_enable=enabled,
        consume_from_min_enable=bool(from_min),
        consume_broadcast_enable=broadcast,
        consume_message_orderly=orderly,
        retry_queue_nums=retry_queues,
        retry_max_times=retries,
        group_retry_policy=parse_policy(policy),
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_id,
        notify_consumer_ids_changed_enable=notify,
        attributes=parse_attributes(attributes),
    )
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            await admin.groups.create(address, config)
        say(f"create subscription group to {address} success.")
    say(group_text(config))


def parse_policy(text: str | None) -> dict[str, Any]:
    """Read a retry policy.

    Raises:
        BadParameter: It is none.
    """
    if not text:
        return {"type": "CUSTOMIZED"}
    try:
        policy = msgspec.json.decode(text, type=dict[str, Any])
        if "type" not in policy:
            raise ConfigError("groupRetryPolicy needs a type, CUSTOMIZED or EXPONENTIAL")
        read_retry_policy(policy)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"the retry policy is no JSON object: {error}") from error
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    return policy


@admin_command("updateSubGroupList")
@broker_or_cluster
@click.option("-f", "--filename", "path", required=True, help="JSON array of configurations.")
async def update_sub_group_list(
    admin: AdminClient, *, broker: str | None, cluster: str | None, path: str
) -> None:
    """Create or change the groups that a JSON file lists."""
    configs: list[GroupConfig] = await asyncio.to_thread(
        read_json_blocking, path, list[GroupConfig]
    )
    if not configs or not all(config.group_name for config in configs):
        raise Failure(f"{path} lists no group, or one without groupName")
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            await admin.groups.create_many(address, configs)
        say(
            f"submit batch of subscription group config to {address} success, "
            "please check the result later."
        )


@admin_command("deleteSubGroup")
@broker_or_cluster
@_group
@click.option("-r", "--removeOffset", "offsets", type=bool, default=False, help="Offsets too.")
async def delete_sub_group(
    admin: AdminClient, *, broker: str | None, cluster: str | None, group: str, offsets: bool
) -> None:
    """Delete a consumer group; with -c its retry and dead-letter topics too."""
    masters = await masters_of(admin, broker, cluster)
    for address in masters:
        with asking(address):
            await admin.groups.delete(address, group, clean_offsets=offsets)
        where = f" in cluster [{cluster}]" if cluster else ""
        say(f"delete subscription group [{group}] from broker [{address}]{where} success.")
    if cluster is None:
        return
    known = set(await admin.cluster.topics())
    for topic in (retry_topic(group), dlq_topic(group)):
        if topic in known:
            await admin.topics.delete(topic, masters, cluster=cluster)
            say(f"delete topic [{topic}] from cluster [{cluster}] success.")


@admin_command("getConsumerConfig")
@_group
@json_option
async def get_consumer_config(admin: AdminClient, *, group: str, as_json: bool) -> None:
    """Show the configuration of a group on every master."""
    found: dict[str, GroupConfig] = {}
    for cluster, each in await brokers_in(admin, None):
        if each.master is None:
            continue
        # The whole table: some brokers create the group that a question for one group names.
        with asking(each.master):
            groups = (await admin.groups.table(each.master)).subscription_group_table
        if group in groups:
            found[f"{cluster}:{each.broker_name}"] = groups[group]
    if not found:
        raise GroupNotExist(f"no broker has a configuration of the group {group}")
    if as_json:
        say_json(found)
        return
    for where, config in found.items():
        say(config_text(where, config))


@admin_command("setConsumeMode")
@broker_or_cluster
@click.option("-t", "--topicName", "topic", metavar="TOPIC", required=True, help="Topic.")
@_group
@click.option("-m", "--mode", "mode", type=click.Choice(MODES, case_sensitive=False), required=True)
@click.option(
    "-q",
    "--popShareQueueNum",
    "share",
    type=int,
    default=0,
    help="How many other members' queues each member pops from as well; 0: all.",
)
async def set_consume_mode(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    group: str,
    mode: str,
    share: int,
) -> None:
    """Set whether a group pulls or pops a topic, for clients that ask brokers for their queues."""
    wanted = RequestMode(
        topic=topic, consumer_group=group, mode=mode.upper(), pop_share_queue_num=share
    )
    for address in await masters_of(admin, broker, cluster):
        with asking(address):
            await admin.groups.set_request_mode(address, wanted)
        say(f"set consume mode to {address} success.")
    say(f"topic[{topic}] group[{group}] consume mode[{wanted.mode}] popShareQueueNum[{share}]")


def config_text(where: str, config: GroupConfig) -> str:
    """Return a group's configuration on one broker, a line per member."""
    lines = [
        f"{name:<40}=  {'' if value == 'null' else value}" for name, value in group_fields(config)
    ]
    return "\n".join([f"{'=' * 29}{where}{'=' * 29}", *lines])


COMMANDS: Final = [
    update_sub_group,
    update_sub_group_list,
    delete_sub_group,
    get_consumer_config,
    set_consume_mode,
]
