"""The command ``consumerStatus``: states that consumers report, and queues that stand still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import Failure, admin_command, json_option, say, say_json
from rocketpost.admin.render import NOT_AVAILABLE, Column, Table
from rocketpost.admin.report import Report
from rocketpost.admin.running_info_text import running_info_text
from rocketpost.client.admin import AdminClient
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.diagnosis.members import collect_reports, find_reader, list_client_ids
from rocketpost.diagnosis.running_info import (
    RunningInfo,
    decode_running_info,
    find_rebalance_problems,
    have_same_subscriptions,
    list_topics,
)
from rocketpost.diagnosis.standstill import find_waiting_queues
from rocketpost.errors import RouteNotFound

_group = click.option(
    "-g", "--consumerGroup", "group", metavar="GROUP", required=True, help="Consumer group."
)
_broker = click.option(
    "-b", "--brokerAddr", "broker", metavar="HOST:PORT", help="Ask this broker and no other."
)

_STATUS: Final = Table(
    "%-10s %-40s %-20s %s",
    [
        Column("#Index", "index"),
        Column("#ClientId", "clientId"),
        Column("#Version", "version"),
        Column("#ConsumerRunningInfoFile", "file", lambda path: path or NOT_AVAILABLE),
    ],
)

_WAITING: Final = Table(
    "%-64s  %-32s  %-4s  %-10s  %s",
    [
        Column("#Topic", "topic"),
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Diff", "diff"),
        Column("#Waits because", "standing"),
    ],
)


@admin_command("consumerStatus")
@_group
@click.option("-i", "--clientId", "client", help="Print the report of this consumer.")
@_broker
@click.option("-s", "--jstack", "stacks", is_flag=True, help="With its threads' stacks.")
@json_option
async def consumer_status(
    admin: AdminClient,
    *,
    group: str,
    client: str | None,
    broker: str | None,
    stacks: bool,
    as_json: bool,
) -> None:
    """Ask the consumers of a group how they are; files of it go to the working directory."""
    if broker is None:
        await require_brokers(admin)
    if client is not None:
        address = broker or await _find_reader(admin, group)
        body = await admin.groups.running_info(address, group, client, stacks=stacks)
        info = decode_running_info(body)
        if as_json:
            say_json(info_members(info))
        else:
            say(running_info_text(info), nl=False)
        return
    found: dict[str, object] = {}
    try:
        await _examine(admin, group, found, broker=broker, stacks=stacks, as_json=as_json)
    finally:
        if as_json and found:
            say_json(found)


async def _examine(
    admin: AdminClient,
    group: str,
    found: dict[str, object],
    *,
    broker: str | None,
    stacks: bool,
    as_json: bool,
) -> None:
    """Compare the consumers of a group: print the results, and add them to ``found``."""
    try:
        connections = await find_connections(admin, group, broker)
    except ConsumerNotOnline:
        await _show_waiting_queues(admin, group, {}, found, as_json=as_json)
        raise
    clients = list_client_ids(connections)
    infos = await fetch_running_infos(admin, group, clients, broker=broker, stacks=stacks)
    folder = Path(str(time.time_ns() // 1_000_000))
    files = {} if as_json else await asyncio.to_thread(_save_blocking, infos, folder)
    versions = {each.client_id: each.version_shown for each in connections.connection_set}
    rows = [(index, name, versions[name], files.get(name)) for index, name in enumerate(clients, 1)]
    found["consumers"] = [
        {
            "clientId": name,
            "version": versions[name],
            "state": info_members(infos[name]) if name in infos else None,
        }
        for name in clients
    ]
    if not as_json:
        say(_STATUS.text(rows))
    await _show_waiting_queues(admin, group, infos, found, as_json=as_json)
    if len(infos) < len(clients):
        raise Failure(
            f"{len(clients) - len(infos)} of {len(clients)} consumers did not report their state, "
            "so subscriptions and the assignment of queues cannot be compared"
        )
    await _compare(admin, infos, found, Report(as_json=as_json))


async def _show_waiting_queues(
    admin: AdminClient,
    group: str,
    infos: dict[str, RunningInfo],
    found: dict[str, object],
    *,
    as_json: bool,
) -> None:
    state = await admin.groups.progress(group)
    waiting = find_waiting_queues(state, infos, now_ms=time.time_ns() // 1_000_000)
    found["waiting"] = _WAITING.objects(waiting)
    if waiting and not as_json:
        say()
        say(_WAITING.text(waiting))


async def _compare(
    admin: AdminClient,
    infos: dict[str, RunningInfo],
    found: dict[str, object],
    report: Report,
) -> None:
    reports = list(infos.values())
    report.line("")
    found["sameSubscriptions"] = have_same_subscriptions(reports)
    if found["sameSubscriptions"]:
        report.line("\nSame subscription in the same group of consumer")
    else:
        report.line("\nWARN: Different subscription in the same group of consumer!!!")
    queues = {
        topic: subscribe_queues(topic, await admin.cluster.route(topic))
        for topic in list_topics(reports)
    }
    problems = find_rebalance_problems(infos, queues)
    found["rebalanceProblems"] = problems
    report.line("\nRebalance Failed" if problems else "\nRebalance OK")
    for problem in problems:
        report.line(problem)


def info_members(info: RunningInfo) -> dict[str, object]:
    """Return the state that a consumer reports as plain values."""
    return {
        "properties": info.properties,
        "subscriptions": info.subscriptions,
        "queues": [{"queue": queue, **state} for queue, state in info.queues.items()],
        "rates": info.rates,
        "stacks": info.stacks,
    }


def _save_blocking(infos: dict[str, RunningInfo], folder: Path) -> dict[str, str]:
    files = {}
    for client, info in infos.items():
        folder.mkdir(exist_ok=True)
        path = folder / client.replace("/", "_")
        path.write_text(running_info_text(info), encoding="utf-8")
        files[client] = str(path)
    return files


async def fetch_running_infos(
    admin: AdminClient, group: str, clients: Sequence[str], *, broker: str | None, stacks: bool
) -> dict[str, RunningInfo]:
    """Return the states that consumers report; print a note about each that does not answer."""
    address = broker or await _find_reader(admin, group)
    infos, failures = await collect_reports(admin, group, clients, address=address, stacks=stacks)
    for client, reason in failures.items():
        click.echo(f"note: {client} does not report its state: {reason}", err=True)
    return infos


async def _find_reader(admin: AdminClient, group: str) -> str:
    address = await find_reader(admin, group)
    if address is None:
        raise Failure(f"no broker serves the group {group}; give a broker with -b")
    return address


async def find_connections(
    admin: AdminClient, group: str, broker: str | None
) -> ConsumerConnections:
    """Return the connected members of a group, as one broker sees them or any that knows it.

    Raises:
        Failure: No broker knows the group.
        ConsumerNotOnline: Nobody is connected.
    """
    try:
        return await admin.groups.connections(group, address=broker)
    except RouteNotFound as error:
        raise Failure(
            f"no consumer of the group {group} ever subscribed; `mqadmin getConsumerConfig` shows "
            "whether the group exists"
        ) from error


COMMANDS: Final = [consumer_status]
