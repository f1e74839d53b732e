"""Consumer groups: the list, and one group with its progress, its members and its problems."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress, decode_consume_state
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.codec.headers.offset import ConsumeStats
from rocketpost.console.collect.snapshot import GroupView, Snapshot
from rocketpost.console.collect.survey import group_addresses
from rocketpost.console.group_history import GroupHistory, read_history
from rocketpost.console.lookup import find_group
from rocketpost.console.pages import Page
from rocketpost.console.shapes import draw_chart
from rocketpost.console.timelines import COLOURS, place_marks
from rocketpost.console.views.lists import cut_list
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.diagnosis.lag import count_matching_lags, queue_lag, total_lag
from rocketpost.diagnosis.members import MemberReports, collect_reports, list_client_ids
from rocketpost.diagnosis.running_info import (
    RunningInfo,
    find_rebalance_problems,
    have_same_subscriptions,
)
from rocketpost.diagnosis.standstill import describe_standstill
from rocketpost.errors import RocketpostError
from rocketpost.model.names import dlq_topic, is_retry_or_dlq, retry_topic
from rocketpost.model.route import MessageQueue

_REPORTS_MAX: Final = 20
"""Most members that a page asks for their state."""
_MATCHING_MAX: Final = 20_000
"""Largest lag whose messages a page counts by the group's filter."""


class GroupQueueRow(msgspec.Struct, kw_only=True, rename="camel"):
    """Progress of a group in a queue."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    committed: int
    pulled: int
    lag: int
    matching: int | None
    """Waiting messages that the group's filter accepts; None if unknown."""
    consumed_ms: int
    owners: list[str]
    waits_for: str


class MemberRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A connected member."""

    client_id: str
    address: str
    language: str
    version: str
    queues: int | None = None
    cached: int | None = None
    problem: str | None = None
    stacks: str = ""


class GroupPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of a group's page."""

    group: GroupView
    lag: int | None
    matching: int | None
    queues: list[GroupQueueRow]
    members: list[MemberRow]
    members_total: int
    members_problem: str | None
    model: str | None
    kind: str | None
    subscriptions: list[tuple[str, str, str]]
    is_mixed: bool
    rebalance: list[str]
    problems: dict[str, str]
    dead_topic: str | None
    retry_topic: str
    configs: dict[str, dict[str, str]]
    """Settings of the group by broker name."""
    new_dead: int | None
    """Dead letters of the last 24 hours; None if they have not been counted yet."""
    history: GroupHistory | None = None


async def show_groups(visit: Visit) -> Page:
    """Show the groups."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    state = visit.choice("state", ("all", "fine", "behind", "still", "offline", "mixed", "unknown"))
    rows = [each for each in snapshot.groups.values() if state in ("all", each.state)]
    listing = cut_list(
        visit,
        rows,
        name=lambda each: each.name,
        sorts={
            "lag": lambda each: each.lag,
            "name": lambda each: each.name,
            "out": lambda each: each.out_rate,
            "delay": lambda each: each.delay_ms,
            "change": lambda each: each.change,
            "dead": lambda each: _new_dead(visit, each),
        },
        descending=True,
    )
    dead = {each.name: _new_dead(visit, each) for each in listing.rows}
    members = dict(
        zip(
            [each.name for each in listing.rows],
            await map_concurrently(listing.rows, lambda each: count_members(visit, snapshot, each)),
            strict=True,
        )
    )
    lags = visit.cluster.collector.lags
    charts = {}
    for each in listing.rows:
        series = lags.find(each.name)
        charts[each.name] = (
            draw_chart(series.fine.points(), width=96, height=20) if series else None
        )
    if visit.wants_json:
        data = msgspec.to_builtins(listing)
        for row, view in zip(data["rows"], listing.rows, strict=True):
            row |= {"members": members[view.name], "state": view.state, "newDead": dead[view.name]}
        return Page(template="groups.html", title="", data=data)
    return Page(
        template="groups.html",
        title=visit.text("nav.groups"),
        data=listing,
        command=visit.command("consumerProgress"),
        is_live=True,
        values={"state": state, "members": members, "dead": dead, "charts": charts},
    )


async def show_group(visit: Visit) -> Page:
    """Show one group.

    Raises:
        NotFoundError: No broker has it.
        RocketpostError: It is unknown whether a broker has it.
    """
    name = visit.param("name")
    snapshot = await visit.cluster.collector.search(lambda each: name in each.groups)
    group = find_group(snapshot, name)
    data, infos = await read_group(visit, snapshot, group, stacks=visit.query("stacks") == "1")
    if data.members_problem is None:
        clients = [each.client_id for each in data.members]
        visit.cluster.survey.note_reports(name, sorted(set(clients)), infos)
        visit.cluster.survey.publish()
    data.history = read_history(visit, snapshot, group)
    series = visit.cluster.collector.lags.find(name)
    day = visit.query("span") == "day"
    chart = None
    if series is not None:
        ring = series.minutes if day else series.fine
        chart = draw_chart(ring.points(), span_ms=86_400_000 if day else 3_600_000)
    return Page(
        template="group.html",
        title=name,
        data=data,
        command=visit.command("consumerProgress", "-g", name),
        is_live=True,
        values={
            "chart": chart,
            "marks": place_marks(chart, data.history.events),
            "day": day,
            "reports": len(infos),
            "holder_colours": COLOURS,
        },
    )


async def read_group(
    visit: Visit, snapshot: Snapshot, group: GroupView, *, stacks: bool
) -> tuple[GroupPage, dict[str, RunningInfo]]:
    """Ask brokers and members about a group."""
    addresses = group_addresses(snapshot, group)
    state, problems = await read_progress(visit, group.name, addresses)
    connections, members_problem = await read_members(visit, group.name, list(addresses.values()))
    clients = list_client_ids(connections) if connections else []
    reports = MemberReports({}, {})
    if clients and addresses:
        reports = await collect_reports(
            visit.admin,
            group.name,
            clients[:_REPORTS_MAX],
            address=next(iter(addresses.values())),
            stacks=stacks,
        )
    matching = await _count_matching(visit, group.name, state)
    now_ms = time.time_ns() // 1_000_000
    rows = [
        _describe_queue(queue, progress, reports.infos, matching.get(queue), now_ms)
        for queue, progress in sorted(state.queues.items(), key=lambda item: item[0].sort_key)
    ]
    infos = list(reports.infos.values())
    topics = snapshot.topics
    page = GroupPage(
        group=group,
        lag=None if problems else total_lag(state),
        matching=None
        if problems or any(row.matching is None for row in rows)
        else sum(row.matching or 0 for row in rows),
        queues=rows,
        members=_describe_members(connections, reports),
        members_total=len(clients),
        members_problem=members_problem,
        model=connections.message_model if connections else None,
        kind=connections.consume_type if connections else None,
        subscriptions=[
            (each.topic, each.expression_type or "TAG", each.sub_string)
            for each in sorted(
                connections.subscription_table.values() if connections else (),
                key=lambda each: each.topic,
            )
        ],
        is_mixed=bool(infos) and not have_same_subscriptions(infos),
        rebalance=_rebalance_problems(reports, state, clients),
        problems=problems,
        dead_topic=dlq_topic(group.name) if dlq_topic(group.name) in topics else None,
        retry_topic=retry_topic(group.name),
        configs=await read_configs(visit, group.name, addresses),
        new_dead=_new_dead(visit, group),
    )
    return page, reports.infos


async def read_configs(
    visit: Visit, group: str, addresses: dict[str, str]
) -> dict[str, dict[str, str]]:
    """Return the settings of a group on each broker that answers."""

    async def ask(address: str) -> dict[str, str]:
        try:
            config = await visit.admin.groups.config(address, group)
        except RocketpostError as error:
            return {visit.text("error.refused"): str(error)}
        plain = msgspec.to_builtins(config)
        return {key: str(value) for key, value in sorted(plain.items()) if key != "groupName"}

    found = await visit.cluster.answers.ask(
        ("group config", group), lambda: map_concurrently(list(addresses.values()), ask)
    )
    return dict(zip(addresses, found, strict=False))


def _new_dead(visit: Visit, group: GroupView) -> int | None:
    """Return the number of dead letters of the last day; None if no survey has counted them."""
    if not group.has_dead_topic:
        return 0
    answer = visit.cluster.survey.dead.get(group.name)
    return None if answer is None else answer.count


async def read_progress(
    visit: Visit, group: str, addresses: dict[str, str]
) -> tuple[ConsumeState, dict[str, str]]:
    """Return the progress of a group on all its brokers, and the reasons of those that failed."""
    header = ConsumeStats(consumer_group=group, topic="")

    async def ask(item: tuple[str, str]) -> ConsumeState | str:
        try:
            answer = await visit.admin.session.call(item[1], RequestCode.GET_CONSUME_STATS, header)
            return decode_consume_state(answer.body)
        except RocketpostError as error:
            return str(error)

    answers = await map_concurrently(list(addresses.items()), ask)
    queues: dict[MessageQueue, QueueProgress] = {}
    problems: dict[str, str] = {}
    for name, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, str):
            problems[name] = answer
        else:
            queues |= answer.queues
    return ConsumeState(queues=queues), problems


async def read_members(
    visit: Visit, group: str, addresses: Sequence[str]
) -> tuple[ConsumerConnections | None, str | None]:
    """Return the members of a group, or None and the reason if that is unknown."""
    problem = None
    for address in addresses:
        try:
            return await visit.admin.groups.connections(group, address), None
        except ConsumerNotOnline:
            continue
        except RocketpostError as error:
            problem = str(error)
    return None, problem


async def count_members(visit: Visit, snapshot: Snapshot, group: GroupView) -> int | None:
    """Return the number of members, asked at most every ten seconds; None if it is unknown."""
    addresses = list(group_addresses(snapshot, group).values())[:1]
    if not addresses:
        return None

    async def ask() -> int | None:
        connections, problem = await read_members(visit, group.name, addresses)
        if problem is not None:
            return None
        return len(list_client_ids(connections)) if connections else 0

    return await visit.cluster.answers.ask(("members", group.name), ask)


async def _count_matching(
    visit: Visit, group: str, state: ConsumeState
) -> dict[MessageQueue, int | None]:
    lag = total_lag(state)
    if lag == 0:
        return dict.fromkeys(state.queues, 0)
    if lag > _MATCHING_MAX:
        return {}
    try:
        return await count_matching_lags(visit.admin, group, state)
    except RocketpostError:
        return {}  # shown as unknown; the offsets above are known


def _describe_queue(
    queue: MessageQueue,
    progress: QueueProgress,
    infos: dict[str, RunningInfo],
    matching: int | None,
    now_ms: int,
) -> GroupQueueRow:
    waiting = queue_lag(progress)
    owners = sorted(client for client, info in infos.items() if queue in info.queues)
    reason = describe_standstill(queue, progress, infos, now_ms=now_ms) if waiting else ""
    if progress.consumer_offset > progress.broker_offset:
        reason = f"its offset {progress.consumer_offset} is beyond the end {progress.broker_offset}"
    return GroupQueueRow(
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        broker_offset=progress.broker_offset,
        committed=progress.consumer_offset,
        pulled=progress.pull_offset,
        lag=waiting,
        matching=matching,
        consumed_ms=progress.last_timestamp,
        owners=owners,
        waits_for=reason.removeprefix(f"{owners[0]}: ") if len(owners) == 1 else reason,
    )


def _describe_members(
    connections: ConsumerConnections | None, reports: MemberReports
) -> list[MemberRow]:
    rows = []
    for each in sorted(
        connections.connection_set if connections else (), key=lambda each: each.client_id
    ):
        info = reports.infos.get(each.client_id)
        cached = None
        if info is not None:
            counts = [values.get("cachedMsgCount", 0) for values in info.queues.values()]
            cached = sum(count for count in counts if isinstance(count, int))
        rows.append(
            MemberRow(
                client_id=each.client_id,
                address=each.client_addr,
                language=each.language,
                version=each.version_shown,
                queues=None if info is None else len(info.queues),
                cached=cached,
                problem=reports.failures.get(each.client_id),
                stacks="" if info is None else info.stacks,
            )
        )
    return rows


def _rebalance_problems(
    reports: MemberReports, state: ConsumeState, clients: list[str]
) -> list[str]:
    """Return queues without an owner or with several; nothing unless every member has reported."""
    if not clients or len(reports.infos) != len(clients):
        return []
    queues: dict[str, list[MessageQueue]] = {}
    for queue in state.queues:
        if not is_retry_or_dlq(queue.topic):
            queues.setdefault(queue.topic, []).append(queue)
    return find_rebalance_problems(reports.infos, queues)
