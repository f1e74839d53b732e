"""Broker processes of a cluster, and the repetition of commands that watch them.

An empty answer of a command that looks for problems means that there are none. So such a command
fails if no broker is registered that could tell of one: see :func:`require_brokers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import click

from rocketpost.admin.command import Failure, list_cluster_brokers
from rocketpost.client.admin import AdminClient
from rocketpost.errors import NoPermission

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


async def require_brokers(admin: AdminClient) -> None:
    """Check that some broker can be asked; who may not list brokers is not checked.

    Raises:
        Failure: No broker is registered.
    """
    try:
        info = await admin.cluster.info()
    except NoPermission:
        return
    if not info.broker_addr_table:
        raise Failure(no_broker_text(admin))


def no_broker_text(admin: AdminClient) -> str:
    """Return the message for name servers at which no broker is registered."""
    addresses = ", ".join(sorted(admin.cluster.name_servers))
    return (
        f"no broker is registered at the name server {addresses}; check that a broker runs and "
        "that its namesrvAddr is this"
    )


async def repeat(every: float | None, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work once, or again after every so many seconds until it fails."""
    await work()
    while every is not None:
        await asyncio.sleep(every)
        await work()
