"""Commands that reset, advance and copy the offsets of consumer groups.

A command counts the messages that a group would skip or get again, and asks for confirmation; see
``admin.confirm``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import click

from rocketpost.admin.command import (
    Failure,
    admin_command,
    cluster_hint,
    errors_from,
    json_option,
    say,
    show_rows,
    topic_option,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.offset_losses import clone_moves, move_losses, queue_moves, reset_moves
from rocketpost.admin.render import Column, Table, parse_time
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.model.route import MessageQueue, TopicRoute

_LATEST: Final = -1

_OFFSETS: Final = Table(
    "%-40s  %-40s  %-40s",
    [
        Column("#brokerName", "brokerName"),
        Column("#queueId", "queueId"),
        Column("#offset", "offset"),
    ],
)

_group = click.option("-g", "--group", metavar="GROUP", required=True, help="Consumer group.")
_force = click.option(
    "-f",
    "--force",
    type=bool,
    default=True,
    show_default=True,
    help=(
        "Also ahead, which skips messages; false: only back. Apache's brokers always treat it "
        "as true."
    ),
)


@admin_command("resetOffsetByTime")
@_group
@topic_option
@click.option(
    "-s", "--timestamp", "when", required=True, help="now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS"
)
@click.option("-b", "--broker", metavar="HOST:PORT", help="With -q: only on this broker.")
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), help="With -b: only this queue.")
@click.option("-o", "--offset", type=click.IntRange(0), help="With -q: this offset, not a time.")
@_force
@cluster_hint
@yes_option
@json_option
async def reset_offset_by_time(
    admin: AdminClient,
    *,
    group: str,
    topic: str,
    when: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Let a group continue at the messages of a given time."""
    try:
        when_ms = parse_time(when, now_ms=time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(f"-s: {error}") from error
    if (broker is None) != (queue_id is None) or (offset is not None and queue_id is None):
        raise click.UsageError("-b and -q must be given together, and -o needs both")
    stamps = f"timestamp(string)[{when}], timestamp(long)[{when_ms}]"
    if broker is not None and queue_id is not None:
        queue = await _find_queue(admin, broker, topic, queue_id)
        if offset is None:
            offset = await OffsetCalls(admin.session).search_offset(queue, when_ms)
        moves = await queue_moves(admin, group, queue, offset)
        await confirm(move_losses(group, topic, moves), yes=yes)
        if not as_json:
            say(
                f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
                f"queueId[{queue_id}], broker[{broker}], {stamps}"
            )
        with errors_from(broker):
            offsets = await admin.groups.reset_queue(broker, group, queue, offset)
        if as_json:
            _show(offsets, as_json=True)
        else:
            say(f"reset consumer offset to {offsets.get(queue, offset)}")
        return
    moves = await reset_moves(admin, group, topic, when_ms, force=force)
    await confirm(move_losses(group, topic, moves), yes=yes)
    if not as_json:
        say(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
            f"force[{str(force).lower()}], {stamps}"
        )
    _show(await admin.groups.reset_offset(group, topic, when_ms, force=force), as_json=as_json)


@admin_command("skipAccumulatedMessage")
@_group
@topic_option
@_force
@cluster_hint
@yes_option
@json_option
async def skip_accumulated_message(
    admin: AdminClient, *, group: str, topic: str, force: bool, yes: bool, as_json: bool
) -> None:
    """Let a group skip all messages that it has not consumed yet."""
    moves = await reset_moves(admin, group, topic, _LATEST, force=force)
    await confirm(move_losses(group, topic, moves), yes=yes)
    offsets = await admin.groups.reset_offset(group, topic, _LATEST, force=force)
    _show(offsets, as_json=as_json)


@admin_command("cloneGroupOffset")
@click.option("-s", "--srcGroup", "source", required=True, help="The group to copy from.")
@click.option("-d", "--destGroup", "target", required=True, help="The group to copy to.")
@topic_option
@click.option(
    "-o", "--offline", type=bool, default=False, help="Copy even if source has left the topic."
)
@yes_option
@json_option
async def clone_group_offset(
    admin: AdminClient,
    *,
    source: str,
    target: str,
    topic: str,
    offline: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy the offsets of a group in a topic to another group."""
    route = await admin.cluster.route(topic)
    brokers = []
    for address in [each.master for each in route.broker_datas if each.master]:
        with errors_from(address):
            if topic in await admin.groups.topics_of(address, source):
                brokers.append(address)
    if not brokers:
        raise Failure(f"the group {source} has no offset in the topic {topic}; nothing is copied")
    moves = await clone_moves(admin, source, target, topic)
    await confirm(move_losses(target, topic, moves), yes=yes)
    for address in brokers:
        with errors_from(address):
            await admin.groups.clone_offset(address, source, target, topic, offline=offline)
    with Report(as_json=as_json) as report:
        text = f"srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
        report.step(
            f"clone group offset success. {text}",
            srcGroup=source,
            destGroup=target,
            topic=topic,
            brokers=brokers,
        )


async def _find_queue(admin: AdminClient, address: str, topic: str, queue_id: int) -> MessageQueue:
    route = await admin.cluster.route(topic)
    return MessageQueue(broker_name_at(route, address, topic), queue_id, topic)


def broker_name_at(route: TopicRoute, address: str, topic: str) -> str:
    """Return the name of the broker at an address.

    Raises:
        Failure: The topic has no broker at the address.
    """
    for each in route.broker_datas:
        if address in each.broker_addrs.values():
            return each.broker_name
    raise Failure(
        f"{topic} has no broker at {address}; `mqadmin topicRoute -t {topic}` shows its brokers"
    )


def _show(offsets: Mapping[MessageQueue, int], *, as_json: bool) -> None:
    rows = [
        (queue.broker_name, queue.queue_id, offsets[queue])
        for queue in sorted(offsets, key=lambda queue: queue.sort_key)
    ]
    show_rows(_OFFSETS, rows, as_json=as_json)


COMMANDS: Final = [reset_offset_by_time, skip_accumulated_message, clone_group_offset]
