"""Brokers: figures of each, all runtime values, settings and how those of others differ."""

from __future__ import annotations

from typing import Final

import msgspec

from rocketpost.console.bodies import is_secret_key
from rocketpost.console.collect.snapshot import BrokerView
from rocketpost.console.lookup import find_servers
from rocketpost.console.pages import Page
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError


class Setting(msgspec.Struct, kw_only=True, rename="camel"):
    """A setting of a broker, and its values at the other brokers if they differ."""

    key: str
    value: str
    others: dict[str, str] = {}


class BrokerPage(msgspec.Struct, kw_only=True, rename="camel"):
    """A broker name: its servers, and the settings of its first one."""

    name: str
    cluster: str
    servers: list[BrokerView]
    groups: dict[str, list[tuple[str, str]]]
    settings: list[Setting]
    settings_problem: str | None = None


_GROUPS: Final = (
    ("traffic", ("tps", "msgput", "msgget", "putmessage", "getmessage", "getfound", "getmiss")),
    ("storage", ("commitlog", "disk", "dispatch", "store", "earliest", "pagecache", "remain")),
    ("pools", ("threadpool", "queue")),
    ("timers", ("timer", "schedule")),
)
"""Runtime values by words in their names; the rest are of the process."""


async def show_brokers(visit: Visit) -> Page:
    """Show all brokers."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    # A broker that was lost is shown, though name servers may not list its cluster any more.
    lost: dict[str, list[str]] = {each.cluster: [] for each in snapshot.brokers}
    return Page(
        template="brokers.html",
        title=visit.text("nav.brokers"),
        data={"clusters": lost | snapshot.clusters, "brokers": snapshot.brokers},
        command=visit.command("clusterList"),
        is_live=True,
    )


async def show_broker(visit: Visit) -> Page:
    """Show one broker name.

    Raises:
        NotFoundError: No name server knows it.
        RocketpostError: No name server answered.
    """
    name = visit.param("name")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    servers = find_servers(snapshot, name)
    others = [each for each in snapshot.brokers if each.is_master and each.name != name]
    settings, problem = await _read_settings(visit, servers[0], others[:20])
    data = BrokerPage(
        name=name,
        cluster=servers[0].cluster,
        servers=servers,
        groups=group_values(servers[0].runtime),
        settings=settings,
        settings_problem=problem,
    )
    address = servers[0].address
    return Page(
        template="broker.html",
        title=name,
        data=data,
        command=visit.command("brokerStatus", "-b", address),
        is_live=True,
        values={"has_others": bool(others)},
    )


async def _read_settings(
    visit: Visit, broker: BrokerView, others: list[BrokerView]
) -> tuple[list[Setting], str | None]:
    async def read(view: BrokerView) -> dict[str, str] | str:
        try:
            return await visit.cluster.answers.ask(
                ("config", view.address), lambda: visit.admin.brokers.config(view.address)
            )
        except RocketpostError as error:
            return str(error)

    [own, *rest] = await map_concurrently([broker, *others], read)
    if isinstance(own, str):
        return [], own
    answered = [
        (view.name, each)
        for view, each in zip(others, rest, strict=True)
        if not isinstance(each, str)
    ]
    return compare_settings(own, dict(answered)), None


def compare_settings(own: dict[str, str], others: dict[str, dict[str, str]]) -> list[Setting]:
    """Return settings with the values of other brokers that differ; secrets are not shown."""
    return [
        Setting(
            key=key,
            value=_hide(key, value),
            others={
                name: _hide(key, each[key])
                for name, each in others.items()
                if key in each and each[key] != value
            },
        )
        for key, value in sorted(own.items())
    ]


def group_values(runtime: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return runtime values by subject, sorted by name."""
    subjects = [*(name for name, _ in _GROUPS), "process"]
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in subjects}
    for key in sorted(runtime):
        lower = key.lower()
        subject = next(
            (name for name, words in _GROUPS if any(word in lower for word in words)), "process"
        )
        found[subject].append((key, runtime[key]))
    return {name: values for name, values in found.items() if values}


def _hide(key: str, value: str) -> str:
    return "••••••" if value and is_secret_key(key) else value
