"""Topics: the list, and one topic with its queues, groups and settings."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketpost.admin.commands.stats import day_count
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.codec.bodies.stats import StatsBody
from rocketpost.codec.bodies.topic import TopicState
from rocketpost.codec.faults import ServerError
from rocketpost.console.collect.snapshot import TOPIC_KINDS, GroupView, Snapshot, TopicView
from rocketpost.console.lookup import find_topic
from rocketpost.console.pages import Page
from rocketpost.console.shapes import draw_chart
from rocketpost.console.views.lists import cut_list
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig, perm_text

_OLDEST_MAX: Final = 64
"""Queues of a topic whose oldest message is asked for, one call each."""


class TopicQueueRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A queue of a topic."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    retained: int
    newest_ms: int
    oldest_ms: int | None = None
    """Store time of the oldest message; None if it is unknown or there is none."""
    share: float
    """Part of the largest number of retained messages of a queue, between 0 and 1."""


class ConfigRow(msgspec.Struct, kw_only=True, rename="camel"):
    """The settings of a topic on one broker."""

    broker: str
    address: str
    problem: str | None = None
    read_queues: int = 0
    write_queues: int = 0
    perm: str = ""
    order: bool = False
    attributes: dict[str, str] = {}


class Traffic(msgspec.Struct, kw_only=True, rename="camel"):
    """The messages that brokers counted as they stored them; unknown numbers are None."""

    in_tps: float | None = None
    in_bytes: float | None = None
    hour: int | None = None
    day: int | None = None


class TopicPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of a topic's page."""

    topic: TopicView
    queues: list[TopicQueueRow]
    problems: dict[str, str]
    configs: list[ConfigRow]
    groups: list[GroupView]
    retained: int | None
    traffic: Traffic


async def show_topics(visit: Visit) -> Page:
    """Show the topics."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    kind = visit.choice("kind", ("users", "all", *TOPIC_KINDS))
    rows = [each for each in snapshot.topics.values() if _is_of_kind(each, kind)]
    listing = cut_list(
        visit,
        rows,
        name=lambda each: each.name,
        sorts={
            "name": lambda each: each.name,
            "in": lambda each: each.in_rate,
            "queues": lambda each: each.read_queues,
            "groups": lambda each: len(each.groups),
            "lag": lambda each: each.worst_lag,
        },
    )
    return Page(
        template="topics.html",
        title=visit.text("nav.topics"),
        data=listing,
        command=visit.command("topicList"),
        is_live=True,
        values={"kind": kind, "kinds": ("users", "all", *TOPIC_KINDS), "perm_text": perm_text},
    )


async def show_topic(visit: Visit) -> Page:
    """Show one topic.

    Raises:
        NotFoundError: No broker has it.
        RocketpostError: It is unknown whether a broker has it.
    """
    name = visit.param("name")
    snapshot = await visit.cluster.collector.search(lambda each: name in each.topics)
    topic = find_topic(snapshot, name)
    brokers = _readers(snapshot, topic)

    async def state(item: tuple[str, str]) -> TopicState | str:
        try:
            return await visit.admin.topics.state_at(item[1], name)
        except RocketpostError as error:
            return str(error)

    async def config(item: tuple[str, str]) -> ConfigRow:
        try:
            found = await visit.admin.topics.config(item[1], name)
        except RocketpostError as error:
            return ConfigRow(broker=item[0], address=item[1], problem=str(error))
        return describe_config(item[0], item[1], found)

    states = await map_concurrently(brokers, state)
    configs = await map_concurrently(brokers, config)
    names = [broker for broker, _ in brokers]
    answered = [each for each in states if not isinstance(each, str)]
    problems = {
        broker: each for broker, each in zip(names, states, strict=True) if isinstance(each, str)
    }
    queues = describe_queues(answered)
    await add_oldest(visit, name, queues)
    groups = [snapshot.groups[each] for each in sorted(topic.groups) if each in snapshot.groups]
    data = TopicPage(
        topic=topic,
        queues=queues,
        problems=problems,
        configs=configs,
        groups=groups,
        retained=None if problems else sum(each.retained for each in queues),
        traffic=adopt_rate(
            await read_traffic(visit, name, [address for _, address in brokers]), topic.in_rate
        ),
    )
    series = visit.cluster.collector.topic_rates.find(name)
    return Page(
        template="topic.html",
        title=name,
        data=data,
        command=visit.command("topicStatus", "-t", name),
        is_live=True,
        values={
            "perm_text": perm_text,
            "chart": draw_chart(series.fine.points()) if series else None,
        },
    )


def describe_queues(states: list[TopicState]) -> list[TopicQueueRow]:
    """Return the queues of a topic, each with its share of the fullest one. Pure."""
    queues: dict[Any, Any] = {}
    for state in states:
        queues.update(state.queues)
    largest = max([1, *(each.max_offset - each.min_offset for each in queues.values())])
    return [
        TopicQueueRow(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            min_offset=each.min_offset,
            max_offset=each.max_offset,
            retained=each.max_offset - each.min_offset,
            newest_ms=each.last_update_timestamp,
            share=(each.max_offset - each.min_offset) / largest,
        )
        for queue, each in sorted(queues.items(), key=lambda item: item[0].sort_key)
    ]


async def add_oldest(visit: Visit, topic: str, queues: list[TopicQueueRow]) -> None:
    """Ask for the store times of the oldest messages of the first queues."""
    calls = OffsetCalls(visit.admin.session)

    async def ask(row: TopicQueueRow) -> int | None:
        queue = MessageQueue(row.broker, row.queue_id, topic)
        try:
            return await visit.cluster.answers.ask(
                ("oldest", queue), lambda: calls.earliest_store_ms(queue)
            )
        except RocketpostError:
            return None

    rows = [each for each in queues if each.retained][:_OLDEST_MAX]
    for row, oldest_ms in zip(rows, await map_concurrently(rows, ask), strict=True):
        row.oldest_ms = oldest_ms if oldest_ms is not None and oldest_ms > 0 else None


async def read_traffic(visit: Visit, topic: str, addresses: list[str]) -> Traffic:
    """Return the traffic of a topic by the statistics of all its brokers."""

    async def ask(address: str) -> list[StatsBody] | None:
        async def read(name: str) -> StatsBody:
            try:
                return await visit.admin.brokers.stats(address, name, topic)
            except ServerError:
                return StatsBody()  # brokers refuse statistics that they have never counted

        try:
            return [await read("TOPIC_PUT_NUMS"), await read("TOPIC_PUT_SIZE")]
        except RocketpostError:
            return None

    found = await visit.cluster.answers.ask(
        ("traffic", topic), lambda: map_concurrently(addresses, ask)
    )
    return sum_traffic(found)


def sum_traffic(answers: list[list[StatsBody] | None]) -> Traffic:
    """Return the sums over brokers; they are unknown if one did not answer. Pure."""
    known = [each for each in answers if each is not None]
    if len(known) < len(answers) or not answers:
        return Traffic()
    counts = [count for count, _ in known]
    return Traffic(
        in_tps=sum(each.stats_minute.tps for each in counts),
        in_bytes=sum(size.stats_minute.tps for _, size in known),
        hour=sum(each.stats_hour.sum or each.stats_minute.sum for each in counts),
        day=sum(map(day_count, counts)),
    )


def adopt_rate(traffic: Traffic, in_rate: float | None) -> Traffic:
    """Return the traffic with the rate of the last round, if there is one. Pure.

    The rate of bytes is that of the messages times their mean size: brokers tell both for the last
    minute, and figures of different times would contradict each other.
    """
    if in_rate is None:
        return traffic
    size = None
    if traffic.in_bytes is not None and traffic.in_tps is not None:
        size = traffic.in_bytes / traffic.in_tps if traffic.in_tps else 0.0
        if not size and in_rate:
            size = None  # the minute ended before the first messages
    in_bytes = None if size is None else in_rate * size
    return msgspec.structs.replace(traffic, in_tps=in_rate, in_bytes=in_bytes)


def describe_config(broker: str, address: str, config: TopicConfig) -> ConfigRow:
    """Return the settings of a topic on a broker for the page. Pure."""
    return ConfigRow(
        broker=broker,
        address=address,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        perm=perm_text(config.perm),
        order=config.order,
        attributes=dict(config.attributes),
    )


def _is_of_kind(topic: TopicView, kind: str) -> bool:
    return kind == "all" or (topic.is_of_users if kind == "users" else topic.kind == kind)


def _readers(snapshot: Snapshot, topic: TopicView) -> list[tuple[str, str]]:
    """Return the first server of each broker name that has a topic."""
    found: dict[str, str] = {}
    for each in snapshot.brokers:
        if each.name in topic.brokers:
            found.setdefault(each.name, each.address)
    return sorted(found.items())
