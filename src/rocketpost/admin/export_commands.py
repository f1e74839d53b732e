"""Commands that write facts about a cluster to files: its tables, its settings, its load."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    list_cluster_brokers,
    say,
    say_json,
)
from rocketpost.admin.render import json_text, plain_value
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import ServerError
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    is_retry_or_dlq,
    is_system_group,
)
from rocketpost.model.route import MASTER_ID, BrokerData
from rocketpost.model.topic import TopicConfig

_DEFAULT: Final = Path(tempfile.gettempdir()) / "rocketmq" / "export"
_SETTINGS: Final = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime",
    "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip

_path_option = click.option(
    "-f",
    "--filePath",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULT,
    show_default=True,
    help="Directory of the file.",
)
_cluster_option = click.option(
    "-c", "--clusterName", "cluster", metavar="NAME", required=True, help="The cluster."
)


def _write_blocking(directory: Path, name: str, value: object) -> None:
    path = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json_text(value) + "\n")
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}; choose another -f") from error
    say(f"export {path} success")


async def _show(directory: Path, name: str, value: object, *, as_json: bool) -> None:
    if as_json:
        say_json(value)
    else:
        await asyncio.to_thread(_write_blocking, directory, name, value)


@admin_command("exportMetadata")
@broker_or_cluster
@_path_option
@click.option("-t", "--topic", "topics_only", is_flag=True, help="Only topics.")
@click.option("-g", "--subscriptionGroup", "groups_only", is_flag=True, help="Only groups.")
@click.option(
    "-s", "--specialTopic", "special", is_flag=True, help="Retry and dead-letter topics too."
)
@json_option
async def export_metadata(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    directory: Path,
    topics_only: bool,
    groups_only: bool,
    special: bool,
    as_json: bool,
) -> None:
    """Write the topics and groups of brokers to a file.

    For a cluster, the numbers of queues of one topic on several brokers are added up.
    """
    if topics_only and groups_only:
        raise click.UsageError("give at most one of -t and -g")
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, GroupConfig] = {}
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            if not groups_only:
                add_topics(topics, await _user_topics(admin, address, special=special))
            if not topics_only:
                add_groups(groups, (await admin.groups.table(address)).subscription_group_table)
    found: dict[str, object] = {}
    if not groups_only:
        found["topicConfigTable"] = dict(sorted(topics.items()))
    if not topics_only:
        found["subscriptionGroupTable"] = dict(sorted(groups.items()))
    name = "topic" if topics_only else "subscriptionGroup" if groups_only else "metadata"
    found["exportTime"] = time.time_ns() // 1_000_000
    await _show(directory, f"{name}.json", found, as_json=as_json)


async def _user_topics(
    admin: AdminClient, address: str, *, special: bool
) -> dict[str, TopicConfig]:
    system = set(await admin.topics.system_topics(address))
    table = (await admin.topics.table(address)).topic_config_table
    return {
        name: config
        for name, config in table.items()
        if name not in system and (special or not is_retry_or_dlq(name))
    }


def add_topics(found: dict[str, TopicConfig], more: Mapping[str, TopicConfig]) -> None:
    """Add the topics of a broker; queues of a topic that is known already are added up."""
    for name, config in more.items():
        before = found.get(name)
        found[name] = (
            config
            if before is None
            else msgspec.structs.replace(
                config,
                read_queue_nums=before.read_queue_nums + config.read_queue_nums,
                write_queue_nums=before.write_queue_nums + config.write_queue_nums,
            )
        )


def add_groups(found: dict[str, GroupConfig], more: Mapping[str, GroupConfig]) -> None:
    """Add the groups of users of a broker; retry queues are added up."""
    for name, config in more.items():
        if is_system_group(name):
            continue
        before = found.get(name)
        found[name] = (
            config
            if before is None
            else msgspec.structs.replace(
                config, retry_queue_nums=before.retry_queue_nums + config.retry_queue_nums
            )
        )


async def _list_brokers(admin: AdminClient, cluster: str) -> list[BrokerData]:
    """Return the brokers of a cluster; print a note about each whose master is missing.

    Raises:
        Failure: The cluster has no master.
        RouteNotFound: There is no such cluster.
    """
    await find_masters(admin, None, cluster)
    brokers = [each for _, each in await list_cluster_brokers(admin, cluster)]
    for each in brokers:
        if not each.master:
            click.echo(f"note: {each.broker_name} has no master, and is left out", err=True)
    return brokers


@admin_command("exportConfigs")
@_cluster_option
@_path_option
@json_option
async def export_configs(
    admin: AdminClient, *, cluster: str, directory: Path, as_json: bool
) -> None:
    """Write the main settings of the brokers of a cluster to a file."""
    masters = slaves = 0
    settings: dict[str, dict[str, object]] = {}
    for each in await _list_brokers(admin, cluster):
        for broker_id, address in sorted(each.broker_addrs.items()):
            if broker_id != MASTER_ID:
                slaves += 1
                continue
            masters += 1
            with errors_from(address):
                values = await admin.brokers.config(address)
            settings[each.broker_name] = {
                key: plain_value(values[key]) for key in _SETTINGS if key in values
            }
    scale = {
        "namesrvSize": len(admin.cluster.name_servers),
        "masterBrokerSize": masters,
        "slaveBrokerSize": slaves,
    }
    found = {
        "clusterScale": scale,
        "brokerConfigs": settings,
        "exportTime": time.time_ns() // 1_000_000,
    }
    await _show(directory, "configs.json", found, as_json=as_json)


@admin_command("exportMetrics")
@_cluster_option
@_path_option
@json_option
async def export_metrics(
    admin: AdminClient, *, cluster: str, directory: Path, as_json: bool
) -> None:
    """Write the load of the brokers of a cluster to a file."""
    reports: dict[str, dict[str, Any]] = {}
    for each in await _list_brokers(admin, cluster):
        if each.master:
            with errors_from(each.master):
                reports[each.broker_name] = await _load(admin, each.master)
    found = {
        "evaluateReport": reports,
        "totalData": add_up(list(reports.values())),
        "exportTime": time.time_ns() // 1_000_000,
    }
    await _show(directory, "metrics.json", found, as_json=as_json)


async def _load(admin: AdminClient, address: str) -> dict[str, Any]:
    """Return the versions and the load of one broker."""
    values = await admin.brokers.runtime(address)

    def today(name: str) -> int:
        return _number(values, f"msg{name}TotalTodayMorning") - _number(
            values, f"msg{name}TotalYesterdayMorning"
        )

    half = await _put_rate(admin, address, HALF_TOPIC)
    delayed = await _put_rate(admin, address, SCHEDULE_TOPIC)
    return {
        "runtimeVersion": {"rocketmqVersion": values.get("brokerVersionDesc", "")},
        "runtimeQuota": {
            "diskRatio": {
                key: plain_value(values[key])
                for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")
                if key in values
            },
            "tps": {
                "normalInTps": _rate(values, "putTps"),
                "normalOutTps": _rate(values, "getTransferredTps"),
                "transInTps": half[0],
                "scheduleInTps": delayed[0],
            },
            "oneDayNum": {
                "normalOneDayInNum": today("Put"),
                "normalOneDayOutNum": today("Get"),
                "transOneDayInNum": half[1],
                "scheduleOneDayInNum": delayed[1],
            },
            "messageAverageSize": plain_value(values.get("putMessageAverageSize", "0")),
            "topicSize": len((await admin.topics.table(address)).topic_config_table),
            "groupSize": len((await admin.groups.table(address)).subscription_group_table),
        },
    }


async def _put_rate(admin: AdminClient, address: str, topic: str) -> tuple[float, int]:
    """Return the messages a second of the last minute, and of the last day, of a topic."""
    try:
        found = await admin.brokers.stats(address, "TOPIC_PUT_NUMS", topic)
    except ServerError:
        return 0.0, 0  # nothing was sent to it
    return found.stats_minute.tps, found.stats_day.sum


def add_up(reports: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the sums of the load of all brokers."""
    return {
        f"total{kind[0].upper()}{kind[1:]}": {
            name: sum(each["runtimeQuota"][kind][name] for each in reports)
            for name in (reports[0]["runtimeQuota"][kind] if reports else ())
        }
        for kind in ("tps", "oneDayNum")
    }


def _number(values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    return int(text) if text.isdecimal() else 0


def _rate(values: Mapping[str, str], key: str) -> float:
    words = values.get(key, "").split()  # over 10, 60 and 600 seconds
    return float(words[0]) if words else 0.0


COMMANDS: Final = [export_metadata, export_configs, export_metrics]
