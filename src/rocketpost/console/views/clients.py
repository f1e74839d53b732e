"""Clients: producers of all brokers, and the consumers of a page of groups."""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.client import ProducerInfo
from rocketpost.console.pages import Page
from rocketpost.console.views.groups import group_addresses, read_members
from rocketpost.console.views.lists import Listing, cut_list
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError


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


class Clients(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    producers: Listing[ProducerRow]
    producer_problems: dict[str, str]
    consumers: list[ConsumerRow]
    consumer_problems: dict[str, str]
    groups: Listing[str]


async def show_clients(visit: Visit) -> Page:
    """Show the connected clients."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    masters = [each for each in snapshot.brokers if each.is_master]
    problems: dict[str, str] = {}

    async def ask(address: str) -> dict[str, list[ProducerInfo]]:
        try:
            return await visit.admin.groups.producers(address)
        except RocketpostError as error:
            problems[address] = str(error)
            return {}

    answers = await map_concurrently([each.address for each in masters], ask)
    merged: dict[tuple[str, str], ProducerRow] = {}
    for broker, answer in zip(masters, answers, strict=True):
        for group, clients in answer.items():
            for client in clients:
                row = merged.setdefault(
                    (group, client.client_id),
                    ProducerRow(
                        group=group,
                        client_id=client.client_id,
                        address=client.remote_ip,
                        language=client.language,
                        version=client.version_shown,
                        seen_ms=client.last_update_timestamp,
                        brokers=[],
                    ),
                )
                row.brokers.append(broker.name)
                row.seen_ms = max(row.seen_ms, client.last_update_timestamp)
    producers = cut_list(
        visit,
        list(merged.values()),
        name=lambda each: f"{each.group} {each.client_id} {each.address}",
        sorts={"group": lambda each: each.group, "client": lambda each: each.client_id},
    )
    groups = cut_list(visit, list(snapshot.groups), name=str, sorts={"name": str})
    consumers: list[ConsumerRow] = []
    consumer_problems: dict[str, str] = {}

    async def look(group: str) -> None:
        addresses = group_addresses(snapshot, snapshot.groups[group])
        connections, problem = await read_members(visit, group, list(addresses.values()))
        if problem is not None:
            consumer_problems[group] = problem
        for each in connections.connection_set if connections else ():
            consumers.append(
                ConsumerRow(
                    group=group,
                    client_id=each.client_id,
                    address=each.client_addr,
                    language=each.language,
                    version=each.version_shown,
                )
            )

    await map_concurrently(groups.rows, look)
    address = masters[0].address if masters else "HOST:PORT"
    consumers.sort(key=lambda each: (each.group, each.client_id))
    return Page(
        template="clients.html",
        title=visit.text("nav.clients"),
        data=Clients(
            producers=producers,
            producer_problems=problems,
            consumers=consumers,
            consumer_problems=consumer_problems,
            groups=groups,
        ),
        command=visit.command("producer", "-b", address),
        is_live=True,
    )
