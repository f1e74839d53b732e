"""Commands that show traffic and backlog of topics and groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import (
    admin_command,
    errors_from,
    json_option,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.render import NOT_AVAILABLE, Column, Table, time_or
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import BrokerConsumeState
from rocketpost.codec.bodies.stats import StatsBody
from rocketpost.codec.faults import ServerError
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.diagnosis.lag import queue_lag, total_lag
from rocketpost.errors import RouteNotFound
from rocketpost.model.names import is_retry_or_dlq

_STATS: Final = Table(
    "%-64s  %-64s %12s %11s %11s %14s %14s",
    [
        Column("#Topic", "topic"),
        Column("#Consumer Group", "group"),
        Column("#Accumulation", "accumulation"),
        Column("#InTPS", "inTps", lambda tps: f"{tps:.2f}"),
        Column("#OutTPS", "outTps", lambda tps: "" if tps is None else f"{tps:.2f}"),
        Column("#InMsg24Hour", "inCount24Hours"),
        Column(
            "#OutMsg24Hour", "outCount24Hours", lambda n: "NO_CONSUMER" if n is None else str(n)
        ),
    ],
)


@admin_command("statsAll", is_watchable=True)
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with messages.")
@click.option("-t", "--topic", "only", metavar="TOPIC", help="Only this topic.")
@json_option
async def stats_all(admin: AdminClient, *, active: bool, only: str | None, as_json: bool) -> None:
    """Show traffic and backlog of topics and groups."""
    await require_brokers(admin)
    topics = [only] if only else sorted(await admin.cluster.topics())
    shown = [topic for topic in topics if not is_retry_or_dlq(topic)]
    found = await map_concurrently(
        shown, lambda topic: _topic_stats(admin, topic, may_be_gone=only is None)
    )
    rows = [row for rows in found for row in rows if not active or row[5] or row[6]]
    show_rows(_STATS, rows, as_json=as_json)


StatsRow = tuple[str, str, int, float, float | None, int, int | None]


async def _topic_stats(admin: AdminClient, topic: str, *, may_be_gone: bool) -> list[StatsRow]:
    try:
        route = await admin.cluster.route(topic)
    except RouteNotFound:
        if may_be_gone:
            return []  # deleted after the list was made
        raise
    readers = [each.reader for each in route.broker_datas if each.reader]
    in_tps, in_count = await _traffic(admin, readers, "TOPIC_PUT_NUMS", topic)
    groups = sorted(await admin.topics.groups_of(topic))
    if not groups:
        return [(topic, "", 0, in_tps, None, in_count, None)]
    rows: list[StatsRow] = []
    for group in groups:
        state = await admin.groups.progress(group, topic)
        backlog = total_lag(state)
        out_tps, out_count = await _traffic(admin, readers, "GROUP_GET_NUMS", f"{topic}@{group}")
        rows.append((topic, group, backlog, in_tps, out_tps, in_count, out_count))
    return rows


async def _traffic(
    admin: AdminClient, masters: Iterable[str], name: str, key: str
) -> tuple[float, int]:
    tps, count = 0.0, 0
    for address in masters:
        try:
            stats = await admin.brokers.stats(address, name, key)
        except ServerError:
            continue  # brokers refuse statistics that they have never counted
        tps += stats.stats_minute.tps
        count += day_count(stats)
    return tps, count


def day_count(stats: StatsBody) -> int:
    """Return the count of the last day, or of the time since the broker began to count."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


_PROGRESS: Final = Table(
    "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s",
    [
        Column("#Topic", "topic"),
        Column("#Group", "group"),
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Broker Offset", "brokerOffset"),
        Column("#Consumer Offset", "consumerOffset"),
        Column("#Diff", "diff"),
        Column("#LastTime", "lastTimestamp", lambda ms: time_or(ms, NOT_AVAILABLE)),
    ],
)


@admin_command("brokerConsumeStats", is_watchable=True)
@click.option(
    "-b", "--brokerAddr", "broker", metavar="HOST:PORT", required=True, help="The broker."
)
@click.option("-o", "--order", "orderly", type=bool, default=False, help="Only ordered topics.")
@click.option("-l", "--level", type=int, default=0, help="Only queues with at least this lag.")
@click.option(
    "-t",
    "--timeoutMillis",
    "broker_ms",
    type=click.IntRange(100, 600_000),
    default=50_000,
    show_default=True,
    help="Milliseconds to wait for the broker.",
)
@json_option
async def broker_consume_stats(
    admin: AdminClient, *, broker: str, orderly: bool, level: int, broker_ms: int, as_json: bool
) -> None:
    """Show the progress of every group of a broker."""
    with errors_from(broker):
        state = await admin.brokers.consume_stats(broker, orderly=orderly, timeout=broker_ms / 1000)
    rows = progress_rows(state, level=level)
    if as_json:
        say_json({"queues": _PROGRESS.objects(rows), "diffTotal": state.total_diff})
        return
    say(_PROGRESS.text(rows))
    say()
    say(f"Diff Total: {state.total_diff}")


def progress_rows(state: BrokerConsumeState, *, level: int) -> list[tuple[object, ...]]:
    """Return a row for each queue in which a group is ``level`` messages behind or more."""
    rows = [
        (
            queue.topic,
            group,
            queue.broker_name,
            queue.queue_id,
            progress.broker_offset,
            progress.consumer_offset,
            queue_lag(progress),
            progress.last_timestamp,
        )
        for group, states in state.groups
        for each in states
        for queue, progress in each.queues.items()
        if queue_lag(progress) >= level
    ]
    return sorted(rows, key=lambda row: row[:4])


COMMANDS: Final = [stats_all, broker_consume_stats]
