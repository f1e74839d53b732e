"""Broker processes of a cluster, and the repetition of commands that watch them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import click

from rocketpost.admin.command import (
    list_cluster_brokers,
)
from rocketpost.client.admin import AdminClient

interval_option = click.option(
    "-i",
    "--interval",
    "every",
    type=click.FloatRange(0.1),
    help="Repeat at this interval, in seconds.",
)


class BrokerProcess(NamedTuple):
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str


async def list_processes(admin: AdminClient, cluster: str | None) -> list[BrokerProcess]:
    """Return the brokers of a cluster, or of all clusters, by name and id."""
    return [
        BrokerProcess(where, each.broker_name, broker_id, each.broker_addrs[broker_id])
        for where, each in await list_cluster_brokers(admin, cluster)
        for broker_id in sorted(each.broker_addrs)
    ]


async def repeat(every: float | None, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work once, or again after every so many seconds until it fails."""
    await work()
    while every is not None:
        await asyncio.sleep(every)
        await work()
