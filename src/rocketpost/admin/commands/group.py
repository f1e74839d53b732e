"""Commands that create, change, delete and show consumer groups.

A change keeps values that the command line leaves out. A change that takes something away from a
group needs confirmation; see ``admin.confirm``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

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
    say,
    say_json,
)
from rocketpost.admin.commands.topic import count_messages
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.group_change import (
    NEW_GROUP,
    apply_group_change,
    deletion_losses,
    plan_groups,
    report_group_change,
)
from rocketpost.admin.render import group_fields, group_text
from rocketpost.admin.report import Report
from rocketpost.admin.topic_change import find_topic
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.assignment import MODES, RequestMode
from rocketpost.codec.faults import GroupNotExist, TopicNotExist
from rocketpost.errors import ConfigError
from rocketpost.model.group import GroupChange, GroupConfig
from rocketpost.model.names import dlq_topic, is_retry_or_dlq, retry_topic
from rocketpost.model.retry_policy import read_retry_policy

_group = click.option("-g", "--groupName", "group", metavar="GROUP", required=True, help="Group.")


_FROM_MIN_NOTE: Final = (
    "consumeFromMinEnable has no effect, here or in RocketMQ: consumers decide where a group starts"
)


@admin_command("updateSubGroup")
@broker_or_cluster
@_group
@click.option(
    "-s",
    "--consumeEnable",
    "enabled",
    type=bool,
    help="Whether the group may consume; true for a new one.",
)
@click.option("-m", "--consumeFromMinEnable", "from_min", type=bool, help="Has no effect.")
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=bool, help="New: false.")
@click.option("-o", "--consumeMessageOrderly", "orderly", type=bool, help="New: false.")
@click.option(
    "-q", "--retryQueueNums", "retry_queues", type=click.IntRange(0, 65536), help="New: 1."
)
@click.option("-r", "--retryMaxTimes", "retries", type=int, help="New: 16.")
@click.option("-p", "--groupRetryPolicy", "policy", help='JSON, such as {"type":"EXPONENTIAL"}')
@click.option("-i", "--brokerId", "broker_id", type=int, help="New: 0.")
@click.option("-w", "--whichBrokerWhenConsumeSlowly", "slow_id", type=int, help="New: 1.")
@click.option("-a", "--notifyConsumerIdsChanged", "notify", type=bool, help="New: true.")
@click.option("--attributes", default="", help="Changes: +name=value,-name")
@yes_option
@json_option
async def update_sub_group(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    group: str,
    enabled: bool | None,
    from_min: bool | None,
    broadcast: bool | None,
    orderly: bool | None,
    retry_queues: int | None,
    retries: int | None,
    policy: str | None,
    broker_id: int | None,
    slow_id: int | None,
    notify: bool | None,
    attributes: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Create a consumer group, or change only the given values of one."""
    if from_min is not None:
        click.echo(f"note: {_FROM_MIN_NOTE}", err=True)
    change = GroupChange(
        group_name=group,
        consume_enable=enabled,
        consume_from_min_enable=from_min,
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
    masters = await find_masters(admin, broker, cluster)
    plans = await plan_groups(admin, masters, [change], defaults=NEW_GROUP)
    await confirm([loss for planned in plans for loss in planned.losses], yes=yes)
    with Report(as_json=as_json) as report:
        for planned in plans:
            await apply_group_change(admin, planned)
            report_group_change(report, planned)
        for text in dict.fromkeys(group_text(planned.after) for planned in plans):
            report.line(text)


def parse_policy(text: str | None) -> dict[str, Any] | None:
    """Parse a retry policy; None if none is given.

    Raises:
        BadParameter: The text is not a retry policy.
    """
    if not text:
        return None
    try:
        policy = msgspec.json.decode(text, type=dict[str, Any])
        if "type" not in policy:
            raise ConfigError("groupRetryPolicy needs a type, CUSTOMIZED or EXPONENTIAL")
        read_retry_policy(policy)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"the retry policy is not a JSON object: {error}") from error
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    return policy


class _ListedGroup(GroupChange, frozen=True, forbid_unknown_fields=True):
    """A group in a file. A misspelt key would otherwise leave a value at its default."""

    subscription_data_set: list[Any] | None = None
    """Key of files that RocketMQ exported."""


@admin_command("updateSubGroupList")
@broker_or_cluster
@click.option("-f", "--filename", "path", required=True, help="JSON array of configurations.")
@yes_option
@json_option
async def update_sub_group_list(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    path: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Create or change the groups in a JSON file; values that it leaves out stay."""
    changes: list[_ListedGroup] = await asyncio.to_thread(
        read_json_blocking, path, list[_ListedGroup]
    )
    for change in changes:
        if change.subscription_data_set:
            click.echo(
                f"note: subscriptionDataSet of {change.group_name} has no effect here: groups "
                "have the subscriptions of their members",
                err=True,
            )
    if not changes or not all(change.group_name for change in changes):
        raise Failure(f"{path} lists no group, or one without groupName")
    changes = [
        msgspec.structs.replace(change, attributes=sign_attributes(change.attributes))
        for change in changes
    ]
    masters = await find_masters(admin, broker, cluster)
    plans = await plan_groups(admin, masters, changes, defaults=GroupConfig())
    await confirm([loss for planned in plans for loss in planned.losses], yes=yes)
    with Report(as_json=as_json) as report:
        for address in masters:
            with errors_from(address):
                await admin.groups.put_many(address, changes)
            report.line(f"submit batch of subscription group config to {address} success.")
            for planned in plans:
                if planned.address == address:
                    report_group_change(report, planned, listed=True)


@admin_command("deleteSubGroup")
@broker_or_cluster
@_group
@click.option("-r", "--removeOffset", "offsets", type=bool, default=False, help="Offsets too.")
@yes_option
@json_option
async def delete_sub_group(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    group: str,
    offsets: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a consumer group; with -c its retry and dead-letter topics too."""
    masters = await find_masters(admin, broker, cluster)
    own = {retry_topic(group), dlq_topic(group)}
    topics = sorted(own.intersection(await admin.cluster.topics())) if cluster else []
    losses = [
        loss
        for address in masters
        for loss in await deletion_losses(admin, address, group, offsets=offsets)
    ]
    for topic in topics:
        if count := await count_messages(admin, topic, masters):
            losses.append(f"this deletes {count} messages of the topic {topic} for good")
    if not topics and not losses and not await _is_known(admin, masters, group):
        raise GroupNotExist(f"{broker or cluster} does not have the group {group}")
    await confirm(losses, yes=yes)
    where = f" in cluster [{cluster}]" if cluster else ""
    with Report(as_json=as_json) as report:
        for address in masters:
            with errors_from(address):
                await admin.groups.delete(address, group, clean_offsets=offsets)
            text = f"delete subscription group [{group}] from broker [{address}]{where} success."
            report.step(text, broker=address, group=group, action="deleted", offsets=offsets)
        for topic in topics:
            await admin.topics.delete(topic, masters, cluster=cluster)
            text = f"delete topic [{topic}] from cluster [{cluster}] success."
            report.step(text, topic=topic, action="deleted", brokers=masters)


async def _is_known(admin: AdminClient, masters: Sequence[str], group: str) -> bool:
    """Return whether one of some brokers has the configuration of a group."""
    for address in masters:
        with errors_from(address):
            table = await admin.groups.table(address)
        if group in table.subscription_group_table:
            return True
    return False


@admin_command("getConsumerConfig")
@_group
@json_option
async def get_consumer_config(admin: AdminClient, *, group: str, as_json: bool) -> None:
    """Show the configuration of a group on every broker."""
    found: dict[str, GroupConfig] = {}
    for cluster, each in await list_cluster_brokers(admin, None):
        if each.reader is None:
            continue
        # The whole table, because some brokers create a group when they are asked for it.
        with errors_from(each.reader):
            groups = (await admin.groups.table(each.reader)).subscription_group_table
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
    type=click.IntRange(0, 1000),
    default=0,
    help="How many other members' queues each member pops from as well; 0: all.",
)
@json_option
async def set_consume_mode(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    group: str,
    mode: str,
    share: int,
    as_json: bool,
) -> None:
    """Set whether a group pulls or pops a topic, for clients whose brokers assign queues."""
    wanted = RequestMode(
        topic=topic, consumer_group=group, mode=mode.upper(), pop_share_queue_num=share
    )
    masters = await find_masters(admin, broker, cluster)
    # Brokers keep the mode of any topic. They refuse retry topics themselves, with the reason.
    if not is_retry_or_dlq(topic) and not any(
        [await find_topic(admin, address, topic) for address in masters]
    ):
        raise TopicNotExist(f"{broker or cluster} does not have the topic {topic}")
    with Report(as_json=as_json) as report:
        for address in masters:
            with errors_from(address):
                await admin.groups.set_request_mode(address, wanted)
            report.step(f"set consume mode to {address} success.", broker=address, mode=wanted)
        report.line(
            f"topic[{topic}] group[{group}] consume mode[{wanted.mode}] popShareQueueNum[{share}]"
        )


def config_text(where: str, config: GroupConfig) -> str:
    """Return a group's configuration on one broker as text, a line per member."""
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
