"""The command ``clusterList``: clusters, brokers, and their load."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

import click
import msgspec

from rocketpost.admin.broker_processes import (
    BrokerProcess,
    interval_option,
    list_processes,
    no_broker_text,
    repeat,
)
from rocketpost.admin.command import (
    Failure,
    admin_command,
    json_option,
    show_rows,
)
from rocketpost.admin.render import (
    NOT_AVAILABLE,
    Column,
    Table,
    flag_text,
)
from rocketpost.client.admin import AdminClient
from rocketpost.errors import ClientError, Fault
from rocketpost.model.route import MASTER_ID

_HOUR_MS: Final = 3_600_000

_CLUSTERS: Final = Table(
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s  %-12s  %10s",
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
        Column("#Role", "role", lambda value: _text(value)),
        Column("#Behind(B)", "behindBytes", lambda value: _text(value)),
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


@admin_command("clusterList", is_watchable=True)
@click.option("-m", "--moreStats", "totals", is_flag=True, help="Messages of today and yesterday.")
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="Only this cluster.")
@interval_option
@json_option
async def cluster_list(
    admin: AdminClient, *, totals: bool, cluster: str | None, every: float | None, as_json: bool
) -> None:
    """List clusters and brokers with their load."""
    table, row = (_TOTALS, total_row) if totals else (_CLUSTERS, cluster_row)

    async def show() -> None:
        silent: list[str] = []
        found: list[tuple[BrokerProcess, Mapping[str, str]]] = []
        for process in await list_processes(admin, cluster):
            try:
                values = await admin.brokers.runtime(process.address)
            except (ClientError, Fault) as error:
                click.echo(f"note: {process.name} at {process.address}: {error}", err=True)
                silent.append(process.address)
                values = {}
            found.append((process, values))
        now_ms = time.time_ns() // 1_000_000
        ends = master_ends(found)
        rows = [
            row(process, values, now_ms=now_ms, master_end=ends.get(process.name))
            for process, values in found
        ]
        show_rows(table, rows, as_json=as_json)
        if not found:
            click.echo(f"note: {no_broker_text(admin)}", err=True)
        for process, known in found:
            if exposure := known.get("exposure"):
                click.echo(f"warning: {process.name} at {process.address}: {exposure}", err=True)
        if silent and every is None:
            raise Failure(f"no values from {', '.join(silent)}; check that it runs")

    await repeat(every, show)


class Load(msgspec.Struct, rename="camel"):
    """The number of waiting requests of one kind, and how long the first has waited."""

    queue_size: int | None
    wait_ms: int | None


class InRate(msgspec.Struct, rename="camel"):
    """Messages received per second, and waiting sends."""

    tps: float | None
    send: Load


class OutRate(msgspec.Struct, rename="camel"):
    """Messages delivered per second, and waiting pulls and acknowledgements."""

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


def master_ends(found: Iterable[tuple[BrokerProcess, Mapping[str, str]]]) -> dict[str, int]:
    """Return the ends of the logs of all masters, by their names."""
    ends: dict[str, int] = {}
    for process, values in found:
        end = _integer(values, "commitLogMaxOffset")
        if process.broker_id == MASTER_ID and end is not None:
            ends[process.name] = end
    return ends


def cluster_row(
    process: BrokerProcess,
    values: Mapping[str, str],
    *,
    now_ms: int,
    master_end: int | None = None,
) -> tuple[object, ...]:
    """Return the row of one broker from its runtime values; None for missing values.

    Args:
        process: The broker.
        values: Its runtime values.
        now_ms: The time now.
        master_end: The end of its master's log, if that is known.
    """
    if not values:
        return (process.cluster, process.name, process.broker_id, process.address, *[None] * 10)

    def load(pool: str) -> Load:
        return Load(_integer(values, f"{pool}Size"), _integer(values, f"{pool}HeadWaitTimeMills"))

    active = values.get("brokerActive")
    return (
        process.cluster,
        process.name,
        process.broker_id,
        process.address,
        values.get("brokerVersionDesc"),
        InRate(_number(values, "putTps"), load("sendThreadPoolQueue")),
        OutRate(
            _number(values, "getTransferredTps"),
            load("pullThreadPoolQueue"),
            load("ackThreadPoolQueue"),
        ),
        TimerState(
            _integer(values, "timerReadBehind"),
            _integer(values, "timerOffsetBehind"),
            _number(values, "timerCongestNum"),
            _number(values, "timerEnqueueTps"),
            _number(values, "timerDequeueTps"),
        ),
        _integer(values, "pageCacheLockTimeMills"),
        _message_age_hours(values, now_ms),
        _number(values, "commitLogDiskRatio"),
        None if active is None else active == "true",
        values.get("brokerRole") or ("SLAVE" if process.broker_id else "MASTER"),
        _count_behind(process, values, master_end),
    )


def _count_behind(
    process: BrokerProcess, values: Mapping[str, str], master_end: int | None
) -> int | None:
    """Return the number of bytes that a slave's log lacks; 0 for a master."""
    if process.broker_id == MASTER_ID:
        return 0
    end = _integer(values, "commitLogMaxOffset")
    # The slave may have taken more while its master was asked.
    return None if end is None or master_end is None else max(0, master_end - end)


def _number(values: Mapping[str, str], key: str) -> float | None:
    words = values.get(key, "").split()
    try:
        return float(words[0])  # the first of several rates is the newest
    except (IndexError, ValueError):
        return None


def _integer(values: Mapping[str, str], key: str) -> int | None:
    try:
        return int(values.get(key, ""))
    except ValueError:
        return None


def _message_age_hours(values: Mapping[str, str], now_ms: int) -> float | None:
    earliest = _integer(values, "earliestMessageTimeStamp")
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


def total_row(
    process: BrokerProcess,
    values: Mapping[str, str],
    *,
    now_ms: int,
    master_end: int | None = None,
) -> tuple[object, ...]:
    """Return the row of messages received and delivered, yesterday and today."""
    del now_ms, master_end

    def between(name: str, first: str, last: str) -> int | None:
        until = _integer(values, f"msg{name}Total{last}")
        since = _integer(values, f"msg{name}Total{first}")
        return None if until is None or since is None else until - since

    return (
        process.cluster,
        process.name,
        between("Put", "YesterdayMorning", "TodayMorning"),
        between("Get", "YesterdayMorning", "TodayMorning"),
        between("Put", "TodayMorning", "TodayNow"),
        between("Get", "TodayMorning", "TodayNow"),
    )


COMMANDS: Final = [cluster_list]
