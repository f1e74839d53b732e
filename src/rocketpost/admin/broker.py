"""Brokers: what there are, how they do, their settings, cleaning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import click

from rocketpost.admin.command import (
    Failure,
    admin_command,
    asking,
    broker_or_cluster,
    brokers_in,
    json_option,
    masters_of,
    require_one,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.render import NOT_AVAILABLE, Column, Table, settings_text
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.stats import ReplicationState
from rocketpost.errors import ClientError, Fault
from rocketpost.model.route import MASTER_ID

_HOUR_MS: Final = 3_600_000

_interval = click.option(
    "-i", "--interval", "every", type=click.FloatRange(0.1), help="Repeat every so many seconds."
)


class Place(NamedTuple):
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str


async def _places(admin: AdminClient, cluster: str | None) -> list[Place]:
    return [
        Place(where, each.broker_name, broker_id, each.broker_addrs[broker_id])
        for where, each in await brokers_in(admin, cluster)
        for broker_id in sorted(each.broker_addrs)
    ]


async def _repeat(every: float | None, work: Callable[[], Awaitable[None]]) -> None:
    await work()
    while every is not None:
        await asyncio.sleep(every)
        await work()


# What there are.

_CLUSTERS: Final = Table(
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Broker Name", "brokerName"),
        Column("#BID", "brokerId"),
        Column("#Addr", "address"),
        Column("#Version", "version"),
        Column("#InTPS(LOAD)", "in"),
        Column("#OutTPS(LOAD)", "out"),
        Column("#Timer(Progress)", "timer"),
        Column("#PCWait(ms)", "pageCacheWaitMs"),
        Column("#Hour", "hours"),
        Column("#SPACE", "diskRatio"),
        Column("#ACTIVATED", "active"),
    ],
)
_TOTALS: Final = Table(
    "%-16s  %-32s %14s %14s %14s %14s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Broker Name", "brokerName"),
        Column("#InTotalYest", "inYesterday"),
        Column("#OutTotalYest", "outYesterday"),
        Column("#InTotalToday", "inToday"),
        Column("#OutTotalToday", "outToday"),
    ],
)


@admin_command("clusterList")
@click.option("-m", "--moreStats", "totals", is_flag=True, help="Messages of today and yesterday.")
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="Only this cluster.")
@_interval
@json_option
async def cluster_list(
    admin: AdminClient, *, totals: bool, cluster: str | None, every: float | None, as_json: bool
) -> None:
    """List clusters and brokers, and how they do."""
    table, row = (_TOTALS, total_row) if totals else (_CLUSTERS, cluster_row)

    async def show() -> None:
        silent: list[str] = []
        rows = []
        for place in await _places(admin, cluster):
            try:
                values = await admin.brokers.runtime(place.address)
            except (ClientError, Fault) as error:
                click.echo(f"note: {place.name} at {place.address}: {error}", err=True)
                silent.append(place.address)
                values = {}
            rows.append(row(place, values, now_ms=time.time_ns() // 1_000_000))
        show_rows(table, rows, as_json=as_json)
        if silent and every is None:
            raise Failure(f"no values from {', '.join(silent)}; check that it runs")

    await _repeat(every, show)


def cluster_row(place: Place, values: Mapping[str, str], *, now_ms: int) -> tuple[object, ...]:
    """Return the row of one broker from its runtime values; what it does not tell is N/A."""
    if not values:
        return (place.cluster, place.name, place.broker_id, place.address, *[NOT_AVAILABLE] * 8)

    def value(key: str) -> str:
        return values.get(key, NOT_AVAILABLE)

    def load(pool: str) -> str:
        return f"{value(pool + 'Size')},{value(pool + 'HeadWaitTimeMills')}ms"

    pull, ack = load("pullThreadPoolQueue"), load("ackThreadPoolQueue")
    timer = (
        f"{value('timerReadBehind')}-{value('timerOffsetBehind')}"
        f"({_number(values, 'timerCongestNum', '.1f', scale=1e-4)}w, "
        f"{_number(values, 'timerEnqueueTps', '.1f')}, {_number(values, 'timerDequeueTps', '.1f')})"
    )
    return (
        place.cluster,
        place.name,
        place.broker_id,
        place.address,
        value("brokerVersionDesc"),
        f"{_number(values, 'putTps', '.2f')}({load('sendThreadPoolQueue')})",
        f"{_number(values, 'getTransferredTps', '.2f')}({pull}|{ack})",
        timer,
        value("pageCacheLockTimeMills"),
        _hours(values, now_ms),
        _number(values, "commitLogDiskRatio", ".4f"),
        value("brokerActive"),
    )


def _number(values: Mapping[str, str], key: str, form: str, *, scale: float = 1.0) -> str:
    words = values.get(key, "").split()
    try:
        return format(float(words[0]) * scale, form)  # of several rates the first is the newest
    except (IndexError, ValueError):
        return NOT_AVAILABLE


def _hours(values: Mapping[str, str], now_ms: int) -> str:
    earliest = values.get("earliestMessageTimeStamp", "")
    if not earliest.isdigit() or int(earliest) == 0:
        return NOT_AVAILABLE  # there is no message
    return f"{max(0, now_ms - int(earliest)) / _HOUR_MS:.2f}"


def total_row(place: Place, values: Mapping[str, str], *, now_ms: int) -> tuple[object, ...]:
    """Return how many messages came and went, yesterday and today."""
    del now_ms

    def between(name: str, first: str, last: str) -> int | str:
        try:
            return int(values[f"msg{name}Total{last}"]) - int(values[f"msg{name}Total{first}"])
        except (KeyError, ValueError):
            return NOT_AVAILABLE

    return (
        place.cluster,
        place.name,
        between("Put", "YesterdayMorning", "TodayMorning"),
        between("Get", "YesterdayMorning", "TodayMorning"),
        between("Put", "TodayMorning", "TodayNow"),
        between("Get", "TodayMorning", "TodayNow"),
    )


# How they do.


@admin_command("brokerStatus")
@broker_or_cluster
@json_option
async def broker_status(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show the runtime values of brokers."""
    require_one(broker, cluster)
    addresses = [broker] if broker else [place.address for place in await _places(admin, cluster)]
    shown: dict[str, dict[str, str]] = {}
    for address in addresses:
        with asking(address):
            shown[address] = await admin.brokers.runtime(address)
    if as_json:
        say_json(shown)
        return
    for address, values in shown.items():
        start = "" if broker else f"{address:<24} "
        for key in sorted(values):
            say(f"{start}{key:<32}: {values[key]}")


_REPLICAS: Final = Table(
    "%-32s  %-16s %16s %16s %16s %16s",
    [
        Column("#SlaveAddr", "address"),
        Column("#SlaveAckOffset", "ackOffset"),
        Column("#Diff", "diff"),
        Column("#TransferSpeed(KB/s)", "bytesPerSecond", lambda speed: f"{speed / 1024:.2f}"),
        Column("#Status", "inSync", lambda ok: "OK" if ok else "Fall Behind"),
        Column("#TransferFromWhere", "transferFromWhere"),
    ],
)


@admin_command("haStatus")
@broker_or_cluster
@_interval
@json_option
async def ha_status(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Show how the replicas of masters do."""

    async def show() -> None:
        states: dict[str, ReplicationState] = {}
        for address in await masters_of(admin, broker, cluster):
            with asking(address):
                states[address] = await admin.brokers.replication(address)
            if not states[address].master:
                raise Failure(f"{address} is a slave; ask its master")
        if as_json:
            say_json(states)
            return
        for address, state in states.items():
            say(replication_text(address, state))

    await _repeat(every, show)


def replication_text(address: str, state: ReplicationState) -> str:
    """Return a master and its slaves."""
    rows = [
        (
            each.addr,
            each.slave_ack_offset,
            each.diff,
            each.transferred_byte_in_second,
            each.in_sync,
            each.transfer_from_where,
        )
        for each in state.ha_connection_info
    ]
    return "\n".join(
        [
            "",
            f"#MasterAddr\t{address}",
            f"#MasterCommitLogMaxOffset\t{state.master_commit_log_max_offset}",
            f"#SlaveNum\t{len(rows)}",
            f"#InSyncSlaveNum\t{state.in_sync_slave_nums}",
            _REPLICAS.text(rows),
        ]
    )


# Settings.


@admin_command("getBrokerConfig")
@broker_or_cluster
@json_option
async def get_broker_config(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show the settings of brokers."""
    require_one(broker, cluster)
    titles = {broker: broker} if broker else await _titles(admin, cluster)
    found: dict[str, dict[str, str]] = {}
    for address in titles:
        with asking(address):
            found[address] = await admin.brokers.config(address)
    if as_json:
        say_json(found)
        return
    for address, title in titles.items():
        say(settings_text(title, found[address]))
        say()


async def _titles(admin: AdminClient, cluster: str | None) -> dict[str, str]:
    titles: dict[str, str] = {}
    for _, each in await brokers_in(admin, cluster):
        for broker_id in sorted(each.broker_addrs):
            address = each.broker_addrs[broker_id]
            if broker_id == MASTER_ID:
                titles[address] = f"Master: {address}"
            else:
                titles[address] = f"My Master: {each.master or 'none'}=====Slave: {address}"
    return titles


@admin_command("updateBrokerConfig")
@broker_or_cluster
@click.option("-k", "--key", required=True, help="The setting.")
@click.option("-v", "--value", required=True, help="Its new value.")
@click.option("-a", "--updateAllBroker", "slaves", type=bool, default=False, help="Slaves too.")
async def update_broker_config(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    key: str,
    value: str,
    slaves: bool,
) -> None:
    """Change a setting of brokers while they run."""
    addresses = await masters_of(admin, broker, cluster)
    if slaves and cluster is not None:
        addresses = [place.address for place in await _places(admin, cluster)]
    for address in addresses:
        with asking(address):
            await admin.brokers.update_config(address, {key: value})
        say(f"update broker config success, {address}")


# Cleaning.


async def _clean(
    admin: AdminClient,
    broker: str | None,
    cluster: str | None,
    clean: Callable[[str], Awaitable[None]],
) -> None:
    if broker is None and cluster is None:
        addresses = [
            place.address for place in await _places(admin, None) if place.broker_id == MASTER_ID
        ]
    else:
        addresses = await masters_of(admin, broker, cluster)
    for address in addresses:
        with asking(address):
            await clean(address)
        click.echo(f"cleaned {address}", err=True)
    if not addresses:
        raise Failure("there is no master to clean; `mqadmin clusterList` shows the brokers")
    say("success")


@admin_command("cleanExpiredCQ")
@broker_or_cluster
async def clean_expired_cq(admin: AdminClient, *, broker: str | None, cluster: str | None) -> None:
    """Delete consume-queue files whose messages are gone; everywhere without -b and -c."""
    await _clean(admin, broker, cluster, admin.brokers.clean_expired_queues)


@admin_command("cleanUnusedTopic")
@broker_or_cluster
async def clean_unused_topic(
    admin: AdminClient, *, broker: str | None, cluster: str | None
) -> None:
    """Delete queues of topics that exist no more; everywhere without -b and -c."""
    await _clean(admin, broker, cluster, admin.brokers.clean_unused_topics)


@admin_command("deleteExpiredCommitLog")
@broker_or_cluster
async def delete_expired_commit_log(
    admin: AdminClient, *, broker: str | None, cluster: str | None
) -> None:
    """Delete expired commit-log files now; everywhere without -b and -c."""
    await _clean(admin, broker, cluster, admin.brokers.delete_expired_log)


COMMANDS: Final = [
    cluster_list,
    broker_status,
    ha_status,
    get_broker_config,
    update_broker_config,
    clean_expired_cq,
    clean_unused_topic,
    delete_expired_commit_log,
]
