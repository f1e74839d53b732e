"""Clients: producers of all brokers, idempotent ones, and the consumers of a page of groups."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from rocketpost.codec.bodies.client import ProducerInfo
from rocketpost.codec.bodies.producers import ProducerState, ProducerStates
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.console.bodies import make_visible
from rocketpost.console.collect.snapshot import BrokerView, Snapshot
from rocketpost.console.collect.survey import group_addresses
from rocketpost.console.pages import Page
from rocketpost.console.views.groups import read_members
from rocketpost.console.views.lists import Listing, cut_list
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError

NUMBERED_MAX: Final = 100
"""Most idempotent producers that the page shows; those that stored last come first."""
_GAPS_SHOWN: Final = 3


class ProducerRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A connected producer, once for each group and client id."""

    group: str
    client_id: str
    address: str
    language: str
    version: str
    seen_ms: int
    brokers: list[str]


class ConsumerRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A connected consumer."""

    group: str
    client_id: str
    address: str
    language: str
    version: str


class NumberedRow(msgspec.Struct, kw_only=True, rename="camel"):
    """An idempotent producer, as one broker knows it."""

    producer_id: str
    broker: str
    epoch: int
    last_sequence: int | None
    missing: int
    """Sequences between the stored ones that the broker does not have."""
    gaps: list[tuple[int, int]]
    """The newest gaps: first and last missing sequence."""
    stored_ms: int


class Clients(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    producers: Listing[ProducerRow]
    producer_problems: dict[str, str]
    consumers: list[ConsumerRow]
    consumer_problems: dict[str, str]
    groups: Listing[str]
    numbered: list[NumberedRow]
    numbered_total: int
    numbered_problems: dict[str, str]


async def show_clients(visit: Visit) -> Page:
    """Show the connected clients."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    masters = [each for each in snapshot.brokers if each.is_master]
    found, producer_problems = await read_producers(visit, masters)
    producers = cut_list(
        visit,
        found,
        name=lambda each: f"{each.group} {each.client_id} {each.address}",
        sorts={"group": lambda each: each.group, "client": lambda each: each.client_id},
    )
    groups = cut_list(visit, list(snapshot.groups), name=str, sorts={"name": str})
    consumers, consumer_problems = await read_consumers(visit, snapshot, groups.rows)
    numbered, numbered_total, numbered_problems = await read_numbered(visit, masters)
    address = masters[0].address if masters else "HOST:PORT"
    return Page(
        template="clients.html",
        title=visit.text("nav.clients"),
        data=Clients(
            producers=producers,
            producer_problems=producer_problems,
            consumers=consumers,
            consumer_problems=consumer_problems,
            groups=groups,
            numbered=numbered,
            numbered_total=numbered_total,
            numbered_problems=numbered_problems,
        ),
        command=visit.command("producer", "-b", address),
        is_live=True,
        values={"numbered_command": visit.command("producerState", "-b", address)},
    )


async def read_producers(
    visit: Visit, brokers: list[BrokerView]
) -> tuple[list[ProducerRow], dict[str, str]]:
    """Return the connected producers, and why some brokers did not tell theirs."""
    problems: dict[str, str] = {}

    async def ask(address: str) -> dict[str, list[ProducerInfo]]:
        try:
            return await visit.admin.groups.producers(address)
        except RocketpostError as error:
            problems[address] = str(error)
            return {}

    answers = await map_concurrently([each.address for each in brokers], ask)
    merged: dict[tuple[str, str], ProducerRow] = {}
    for broker, answer in zip(brokers, answers, strict=True):
        for group, clients in answer.items():
            for client in clients:
                row = merged.setdefault(
                    (group, client.client_id),
                    ProducerRow(
                        group=group,
                        client_id=client.client_id,
                        address=client.remote_ip.removeprefix("/"),  # as Java writes it
                        language=client.language,
                        version=client.version_shown,
                        seen_ms=client.last_update_timestamp,
                        brokers=[],
                    ),
                )
                row.brokers.append(broker.name)
                row.seen_ms = max(row.seen_ms, client.last_update_timestamp)
    return list(merged.values()), problems


async def read_consumers(
    visit: Visit, snapshot: Snapshot, groups: list[str]
) -> tuple[list[ConsumerRow], dict[str, str]]:
    """Return the connected consumers of some groups, and why those of others are not known."""
    rows: list[ConsumerRow] = []
    problems: dict[str, str] = {}

    async def ask(group: str) -> None:
        addresses = group_addresses(snapshot, snapshot.groups[group])
        connections, problem = await read_members(visit, group, list(addresses.values()))
        if problem is not None:
            problems[group] = problem
        for each in connections.connection_set if connections else ():
            rows.append(
                ConsumerRow(
                    group=group,
                    client_id=each.client_id,
                    address=each.client_addr,
                    language=each.language,
                    version=each.version_shown,
                )
            )

    await map_concurrently(groups, ask)
    rows.sort(key=lambda each: (each.group, each.client_id))
    return rows, problems


async def read_numbered(
    visit: Visit, brokers: list[BrokerView]
) -> tuple[list[NumberedRow], int, dict[str, str]]:
    """Return the idempotent producers that match the filter, those that stored last first.

    Apache's brokers know no such producers, so they have none.
    """
    problems: dict[str, str] = {}

    async def ask(broker: BrokerView) -> ProducerStates:
        try:
            return await visit.admin.brokers.producer_states(broker.address, count_max=NUMBERED_MAX)
        except RequestCodeNotSupported:
            return ProducerStates()
        except RocketpostError as error:
            problems[broker.name] = str(error)
            return ProducerStates()

    answers = await map_concurrently(brokers, ask)
    rows = [
        describe_numbered(broker.name, state)
        for broker, answer in zip(brokers, answers, strict=True)
        for state in answer.producers
    ]
    words = visit.query("q", length_max=300).casefold().split()
    rows = [row for row in rows if all(word in row.producer_id.casefold() for word in words)]
    rows.sort(key=lambda row: -row.stored_ms)
    return rows[:NUMBERED_MAX], sum(each.total for each in answers), problems


def describe_numbered(broker: str, state: ProducerState) -> NumberedRow:
    """Return the row of an idempotent producer. Pure."""
    gaps = [
        (end, begin - 1)
        for (_, end), (begin, _) in pairwise(state.runs)
    ]  # fmt: skip
    return NumberedRow(
        producer_id=make_visible(state.producer_id),
        broker=broker,
        epoch=state.epoch,
        last_sequence=state.last_sequence,
        missing=sum(last - first + 1 for first, last in gaps),
        gaps=gaps[-_GAPS_SHOWN:],
        stored_ms=state.last_timestamp,
    )
