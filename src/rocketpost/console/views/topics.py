"""Topics: the list, and one topic with its queues, groups and settings."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketpost.codec.bodies.topic import TopicState
from rocketpost.console.collect.snapshot import TOPIC_KINDS, GroupView, Snapshot, TopicView
from rocketpost.console.lookup import find_topic
from rocketpost.console.pages import Page
from rocketpost.console.views.lists import cut_list
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError
from rocketpost.model.topic import TopicConfig, perm_text


class TopicQueueRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A queue of a topic."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    retained: int
    newest_ms: int
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


class TopicPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of a topic's page."""

    topic: TopicView
    queues: list[TopicQueueRow]
    problems: dict[str, str]
    configs: list[ConfigRow]
    groups: list[GroupView]
    retained: int | None


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
        RocketpostError: Nobody knows whether a broker has it.
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
    groups = [snapshot.groups[each] for each in sorted(topic.groups) if each in snapshot.groups]
    data = TopicPage(
        topic=topic,
        queues=queues,
        problems=problems,
        configs=configs,
        groups=groups,
        retained=None if problems else sum(each.retained for each in queues),
    )
    return Page(
        template="topic.html",
        title=name,
        data=data,
        command=visit.command("topicStatus", "-t", name),
        is_live=True,
        values={"perm_text": perm_text},
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
