"""Commands about connected clients: progress of groups, connections of consumers and producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import (
    Failure,
    admin_command,
    cluster_hint,
    errors_from,
    json_option,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.commands.consumer_status import fetch_running_infos, find_connections
from rocketpost.admin.render import NOT_AVAILABLE, Column, Table, time_or
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.diagnosis.lag import count_matching_lags, queue_lag, total_lag
from rocketpost.diagnosis.members import list_client_ids
from rocketpost.errors import ClientError, Fault, RouteNotFound
from rocketpost.model.client_version import version_text
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

_TYPES: Final = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}

_group = click.option(
    "-g", "--consumerGroup", "group", metavar="GROUP", required=True, help="Consumer group."
)
_broker = click.option(
    "-b", "--brokerAddr", "broker", metavar="HOST:PORT", help="Ask this broker and no other."
)


# Progress.

_QUEUE_COLUMNS: Final = [
    Column("#Topic", "topic"),
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId"),
    Column("#Broker Offset", "brokerOffset"),
    Column("#Consumer Offset", "consumerOffset"),
]
_LAGS: Final = [
    Column("#Diff", "diff"),
    Column("#Inflight", "inflight"),
    Column("#LastTime", "lastTimestamp", lambda ms: time_or(ms, NOT_AVAILABLE)),
]
_CLIENT: Final = Column("#Client IP", "clientIp", lambda ip: ip or NOT_AVAILABLE)
_MATCHING: Final = Column(
    "#Matching", "matching", lambda count: NOT_AVAILABLE if count is None else str(count)
)
_WIDTHS: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s"
_PROGRESS: Final = Table(f"{_WIDTHS} %s", [*_QUEUE_COLUMNS, *_LAGS])
_PROGRESS_CLIENTS: Final = Table(f"{_WIDTHS} %-20s %s", [*_QUEUE_COLUMNS, _CLIENT, *_LAGS])
_PROGRESS_EXACT: Final = Table(f"{_WIDTHS} %-20s %s", [*_QUEUE_COLUMNS, *_LAGS, _MATCHING])
_PROGRESS_BOTH: Final = Table(
    f"{_WIDTHS} %-20s %-20s %s", [*_QUEUE_COLUMNS, _CLIENT, *_LAGS, _MATCHING]
)
_TABLES: Final = {
    (False, False): _PROGRESS,
    (True, False): _PROGRESS_CLIENTS,
    (False, True): _PROGRESS_EXACT,
    (True, True): _PROGRESS_BOTH,
}
"""Tables by two flags: with the owner of each queue, with matching messages."""
_GROUPS: Final = Table(
    "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s",
    [
        Column("#Group", "group"),
        Column("#Count", "count"),
        Column("#Version", "version", lambda version: version or "OFFLINE"),
        Column("#Type", "type"),
        Column("#Model", "model"),
        Column("#TPS", "tps", lambda tps: str(int(tps))),
        Column("#Diff Total", "diffTotal"),
    ],
)


@admin_command("consumerProgress", is_watchable=True)
@click.option("-g", "--groupName", "group", metavar="GROUP", help="One group; all if not given.")
@click.option("-t", "--topicName", "topic", metavar="TOPIC", help="With -g: only this topic.")
@click.option(
    "-s",
    "--showClientIP",
    "clients",
    type=bool,
    default=False,
    help="Show the member that has each queue.",
)
@click.option(
    "-e", "--exact", is_flag=True, help="With -g: count messages that the group's filter accepts."
)
@cluster_hint
@json_option
async def consumer_progress(
    admin: AdminClient,
    *,
    group: str | None,
    topic: str | None,
    clients: bool,
    exact: bool,
    as_json: bool,
) -> None:
    """Show the progress of groups."""
    if group is None and (topic or clients or exact):
        raise click.UsageError("-t, -s and -e need -g")
    await require_brokers(admin)
    if group is None:
        await _all_groups(admin, as_json=as_json)
        return
    state = await _progress(admin, group, topic)
    owners = await _owners(admin, group) if clients else None
    counts = await count_matching_lags(admin, group, state) if exact else None
    rows = progress_rows(state, owners, counts)
    table = _TABLES[clients, exact]
    diff, in_flight = total_lag(state), _total_in_flight(state)
    matching = None if counts is None or None in counts.values() else _sum(counts)
    if as_json:
        totals = {"diffTotal": diff, "inflightTotal": in_flight, "consumeTps": state.consume_tps}
        more = {"matchingTotal": matching} if exact else {}
        say_json({"queues": table.objects(rows), **totals, **more})
        return
    say(table.text(rows))
    say()
    say(f"Consume TPS: {state.consume_tps:.2f}")
    say(f"Consume Diff Total: {diff}")
    say(f"Consume Inflight Total: {in_flight}")
    if exact:
        say(f"Consume Matching Total: {NOT_AVAILABLE if matching is None else matching}")


def _sum(counts: Mapping[MessageQueue, int | None]) -> int:
    return sum(count or 0 for count in counts.values())


def progress_rows(
    state: ConsumeState,
    owners: Mapping[MessageQueue, str] | None = None,
    counts: Mapping[MessageQueue, int | None] | None = None,
) -> list[tuple[object, ...]]:
    """Return a row per queue; ``owners`` and ``counts`` of matching messages add columns."""
    rows: list[tuple[object, ...]] = []
    for queue in sorted(state.queues, key=lambda queue: queue.sort_key):
        at = state.queues[queue]
        rows.append(
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                at.broker_offset,
                at.consumer_offset,
                *([] if owners is None else [owners.get(queue)]),
                queue_lag(at),
                max(0, at.pull_offset - at.consumer_offset),
                at.last_timestamp,
                *([] if counts is None else [counts.get(queue)]),
            )
        )
    return rows


def _total_in_flight(state: ConsumeState) -> int:
    return sum(max(0, at.pull_offset - at.consumer_offset) for at in state.queues.values())


async def _progress(admin: AdminClient, group: str, topic: str | None) -> ConsumeState:
    try:
        return await admin.groups.progress(group, topic)
    except RouteNotFound as error:
        if topic is not None:
            raise
        raise Failure(
            f"no consumer of the group {group} ever subscribed, so its topics are not known; for a "
            "group that only pulls, give -t TOPIC"
        ) from error


async def _owners(admin: AdminClient, group: str) -> dict[MessageQueue, str]:
    try:
        connections = await admin.groups.connections(group)
    except ConsumerNotOnline:
        return {}
    infos = await fetch_running_infos(
        admin, group, list_client_ids(connections), broker=None, stacks=False
    )
    return {
        queue: client.partition("@")[0] for client, info in infos.items() for queue in info.queues
    }


async def _all_groups(admin: AdminClient, *, as_json: bool) -> None:
    topics = sorted(await admin.cluster.topics())
    groups = [
        topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)
    ]
    found = await map_concurrently(groups, lambda group: _group_row(admin, group))
    show_rows(_GROUPS, [row for row in found if row is not None], as_json=as_json)
    if None in found:
        raise Failure(f"{found.count(None)} of {len(groups)} groups could not be asked about")


async def _group_row(admin: AdminClient, group: str) -> tuple[object, ...] | None:
    try:
        state = await admin.groups.progress(group)
        connected = await admin.groups.connections(group)
    except ConsumerNotOnline:
        return group, 0, None, "", "", state.consume_tps, total_lag(state)
    except (ClientError, Fault) as error:
        click.echo(f"note: {group}: {error}", err=True)
        return None
    oldest = min(each.version for each in connected.connection_set)
    return (
        group,
        len(connected.connection_set),
        version_text(oldest),
        _TYPES.get(connected.consume_type, connected.consume_type),
        connected.message_model,
        state.consume_tps,
        total_lag(state),
    )


# Connections.

_CONNECTIONS: Final = Table(
    "%-36s %-22s %-10s %s",
    [
        Column("#ClientId", "clientId"),
        Column("#ClientAddr", "clientAddr"),
        Column("#Language", "language"),
        Column("#Version", "version"),
    ],
)
_SUBSCRIPTIONS: Final = Table(
    "%-20s %s",
    [Column("#Topic", "topic"), Column("#SubExpression", "subString")],
)


@admin_command("consumerConnection", is_watchable=True)
@_group
@_broker
@json_option
async def consumer_connection(
    admin: AdminClient, *, group: str, broker: str | None, as_json: bool
) -> None:
    """Show the connected consumers of a group and what they subscribe to."""
    if broker is None:
        await require_brokers(admin)
    connections = await find_connections(admin, group, broker)
    if as_json:
        say_json(connections)
    else:
        say(connections_text(connections))


def connections_text(connections: ConsumerConnections) -> str:
    """Return the consumers of a group and their subscriptions."""
    clients = [
        (each.client_id, each.client_addr, each.language, each.version_shown)
        for each in sorted(connections.connection_set, key=lambda each: each.client_id)
    ]
    table = connections.subscription_table
    wanted = [(topic, table[topic].sub_string) for topic in sorted(table)]
    return "\n".join(
        [
            _CONNECTIONS.text(clients),
            "",
            "Below is subscription:",
            _SUBSCRIPTIONS.text(wanted),
            "",
            f"ConsumeType: {connections.consume_type}",
            f"MessageModel: {connections.message_model}",
            f"ConsumeFromWhere: {connections.consume_from_where}",
        ]
    )


@admin_command("producerConnection", is_watchable=True)
@click.option("-g", "--producerGroup", "group", metavar="GROUP", required=True, help="Group.")
@click.option("-t", "--topic", metavar="TOPIC", required=True, help="A topic that it sends to.")
@json_option
async def producer_connection(admin: AdminClient, *, group: str, topic: str, as_json: bool) -> None:
    """Show the connected producers of a group."""
    connections = (await admin.groups.producer_connections(group, topic)).connection_set
    if as_json:
        say_json(connections)
        return
    for index, each in enumerate(sorted(connections, key=lambda each: each.client_id), 1):
        say(
            f"{index:04d}  {each.client_id:<32} {each.client_addr:<22} {each.language:<8} "
            f"{each.version_shown}"
        )


@admin_command("producer", is_watchable=True)
@click.option("-b", "--broker", metavar="HOST:PORT", required=True, help="The broker.")
@json_option
async def producer(admin: AdminClient, *, broker: str, as_json: bool) -> None:
    """Show every producer that is connected to a broker."""
    with errors_from(broker):
        producers = await admin.groups.producers(broker)
    if as_json:
        say_json(producers)
        return
    for group in sorted(producers):
        for each in sorted(producers[group], key=lambda each: each.client_id):
            say(
                f"producer group ({group}) instance : clientId={each.client_id},"
                f"remoteIP={each.remote_ip}, language={each.language}, version={each.version}, "
                f"lastUpdateTimestamp={each.last_update_timestamp}"
            )


COMMANDS: Final = [
    consumer_progress,
    consumer_connection,
    producer_connection,
    producer,
]
