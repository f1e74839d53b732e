"""Brokers: what there are, how they do, their settings, cleaning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

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
    require_one,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.losses import is_taking, setting_losses
from rocketpost.admin.render import (
    NOT_AVAILABLE,
    Column,
    Table,
    flag_text,
    plain_value,
    settings_text,
)
from rocketpost.admin.report import Report
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
        Column("#Version", "version", lambda value: _text(value)),
        Column("#InTPS(LOAD)", "in", lambda value: _in_text(value)),
        Column("#OutTPS(LOAD)", "out", lambda value: _out_text(value)),
        Column("#Timer(Progress)", "timer", lambda value: _timer_text(value)),
        Column("#PCWait(ms)", "pageCacheWaitMs", lambda value: _text(value)),
        Column("#Hour", "hours", lambda value: _text(value, ".2f")),
        Column("#SPACE", "diskRatio", lambda value: _text(value, ".4f")),
        Column("#ACTIVATED", "active", lambda value: _text(value)),
    ],
)
_TOTALS: Final = Table(
    "%-16s  %-32s %14s %14s %14s %14s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Broker Name", "brokerName"),
        Column("#InTotalYest", "inYesterday", lambda value: _text(value)),
        Column("#OutTotalYest", "outYesterday", lambda value: _text(value)),
        Column("#InTotalToday", "inToday", lambda value: _text(value)),
        Column("#OutTotalToday", "outToday", lambda value: _text(value)),
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


class Load(msgspec.Struct, rename="camel"):
    """Number of requests of one kind waiting in a broker, and how long the first has waited."""

    queue_size: int | None
    wait_ms: int | None


class InRate(msgspec.Struct, rename="camel"):
    """Messages that come in a second, and the sends that wait."""

    tps: float | None
    send: Load


class OutRate(msgspec.Struct, rename="camel"):
    """Messages that go out a second, and the pulls and acknowledgements that wait."""

    tps: float | None
    pull: Load
    ack: Load


class TimerState(msgspec.Struct, rename="camel"):
    """Backlog of timed messages."""

    read_behind: int | None
    offset_behind: int | None
    congest_num: float | None
    enqueue_tps: float | None
    dequeue_tps: float | None


def cluster_row(place: Place, values: Mapping[str, str], *, now_ms: int) -> tuple[object, ...]:
    """Return the row of one broker from its runtime values; what it does not tell is None."""
    if not values:
        return (place.cluster, place.name, place.broker_id, place.address, *[None] * 8)

    def load(pool: str) -> Load:
        return Load(_whole(values, f"{pool}Size"), _whole(values, f"{pool}HeadWaitTimeMills"))

    active = values.get("brokerActive")
    return (
        place.cluster,
        place.name,
        place.broker_id,
        place.address,
        values.get("brokerVersionDesc"),
        InRate(_number(values, "putTps"), load("sendThreadPoolQueue")),
        OutRate(
            _number(values, "getTransferredTps"),
            load("pullThreadPoolQueue"),
            load("ackThreadPoolQueue"),
        ),
        TimerState(
            _whole(values, "timerReadBehind"),
            _whole(values, "timerOffsetBehind"),
            _number(values, "timerCongestNum"),
            _number(values, "timerEnqueueTps"),
            _number(values, "timerDequeueTps"),
        ),
        _whole(values, "pageCacheLockTimeMills"),
        _hours(values, now_ms),
        _number(values, "commitLogDiskRatio"),
        None if active is None else active == "true",
    )


def _number(values: Mapping[str, str], key: str) -> float | None:
    words = values.get(key, "").split()
    try:
        return float(words[0])  # of several rates the first is the newest
    except (IndexError, ValueError):
        return None


def _whole(values: Mapping[str, str], key: str) -> int | None:
    try:
        return int(values.get(key, ""))
    except ValueError:
        return None


def _hours(values: Mapping[str, str], now_ms: int) -> float | None:
    earliest = _whole(values, "earliestMessageTimeStamp")
    if earliest is None or earliest <= 0:
        return None  # there is no message
    return round(max(0, now_ms - earliest) / _HOUR_MS, 2)


def _text(value: object, form: str = "") -> str:
    if value is None:
        return NOT_AVAILABLE
    return flag_text(value) if isinstance(value, bool) else format(value, form)


def _load_text(load: Load) -> str:
    return f"{_text(load.queue_size)},{_text(load.wait_ms)}ms"


def _in_text(rate: InRate | None) -> str:
    if rate is None:
        return NOT_AVAILABLE
    return f"{_text(rate.tps, '.2f')}({_load_text(rate.send)})"


def _out_text(rate: OutRate | None) -> str:
    if rate is None:
        return NOT_AVAILABLE
    return f"{_text(rate.tps, '.2f')}({_load_text(rate.pull)}|{_load_text(rate.ack)})"


def _timer_text(state: TimerState | None) -> str:
    if state is None:
        return NOT_AVAILABLE
    congested = None if state.congest_num is None else state.congest_num / 10_000
    return (
        f"{_text(state.read_behind)}-{_text(state.offset_behind)}({_text(congested, '.1f')}w, "
        f"{_text(state.enqueue_tps, '.1f')}, {_text(state.dequeue_tps, '.1f')})"
    )


def total_row(place: Place, values: Mapping[str, str], *, now_ms: int) -> tuple[object, ...]:
    """Return how many messages came and went, yesterday and today."""
    del now_ms

    def between(name: str, first: str, last: str) -> int | None:
        until = _whole(values, f"msg{name}Total{last}")
        since = _whole(values, f"msg{name}Total{first}")
        return None if until is None or since is None else until - since

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
        say_json(
            {
                address: {key: plain_value(value) for key, value in values.items()}
                for address, values in shown.items()
            }
        )
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
@yes_option
@json_option
async def update_broker_config(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    key: str,
    value: str,
    slaves: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change a setting of brokers while they run."""
    addresses = await masters_of(admin, broker, cluster)
    if slaves and cluster is not None:
        addresses = [place.address for place in await _places(admin, cluster)]
    losses = []
    if is_taking(key):
        for address in addresses:
            with asking(address):
                before = (await admin.brokers.config(address)).get(key)
            losses += [f"{address}: {loss}" for loss in setting_losses(key, before, value)]
    await confirm(losses, yes=yes)
    with Report(as_json=as_json) as report:
        for address in addresses:
            with asking(address):
                await admin.brokers.update_config(address, {key: value})
            text = f"update broker config success, {address}"
            report.step(text, broker=address, key=key, value=value)


# Cleaning.


async def _clean(
    admin: AdminClient,
    broker: str | None,
    cluster: str | None,
    clean: Callable[[str], Awaitable[None]],
    *,
    loss: str | None = None,
    yes: bool = True,
    as_json: bool,
) -> None:
    if broker is None and cluster is None:
        addresses = [
            place.address for place in await _places(admin, None) if place.broker_id == MASTER_ID
        ]
    else:
        addresses = await masters_of(admin, broker, cluster)
    if not addresses:
        raise Failure("there is no master to clean; `mqadmin clusterList` shows the brokers")
    await confirm([f"{loss} at {', '.join(addresses)}"] if loss else [], yes=yes)
    with Report(as_json=as_json) as report:
        for address in addresses:
            with asking(address):
                await clean(address)
            click.echo(f"cleaned {address}", err=True)
            report.add(broker=address, action="cleaned")
        report.line("success")


@admin_command("cleanExpiredCQ")
@broker_or_cluster
@json_option
async def clean_expired_cq(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Delete consume-queue files whose messages are gone; everywhere without -b and -c."""
    await _clean(admin, broker, cluster, admin.brokers.clean_expired_queues, as_json=as_json)


@admin_command("cleanUnusedTopic")
@broker_or_cluster
@yes_option
@json_option
async def clean_unused_topic(
    admin: AdminClient, *, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete queues of topics that exist no more; everywhere without -b and -c."""
    await _clean(
        admin,
        broker,
        cluster,
        admin.brokers.clean_unused_topics,
        loss="this deletes the queues of topics that no longer exist for good,",
        yes=yes,
        as_json=as_json,
    )


@admin_command("deleteExpiredCommitLog")
@broker_or_cluster
@yes_option
@json_option
async def delete_expired_commit_log(
    admin: AdminClient, *, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete expired commit-log files now; everywhere without -b and -c."""
    await _clean(
        admin,
        broker,
        cluster,
        admin.brokers.delete_expired_log,
        loss="this deletes messages older than fileReservedTime for good,",
        yes=yes,
        as_json=as_json,
    )


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
