"""Brokers: figures of each, all runtime values, settings and how those of others differ."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Final

import msgspec

from rocketpost.console.actions.audit_log import KEPT_MAX, AuditLine
from rocketpost.console.actions.brokers import ACTIONS, ALL
from rocketpost.console.bodies import is_secret_key
from rocketpost.console.collect.snapshot import BrokerView
from rocketpost.console.lookup import find_servers
from rocketpost.console.pages import Page
from rocketpost.console.views.audit import act_text
from rocketpost.console.views.clients import read_producers
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError


class Setting(msgspec.Struct, kw_only=True, rename="camel"):
    """A setting of a broker, and its values at the other brokers if they differ."""

    key: str
    value: str
    others: dict[str, str] = {}


class WriteTime(msgspec.Struct, kw_only=True, rename="camel"):
    """The sends whose write took a time between two bounds."""

    bounds: str
    count: int
    share: float
    """Part of the largest count, between 0 and 1."""


class ProducerKind(msgspec.Struct, kw_only=True, rename="camel"):
    """Producers of one language and version."""

    language: str
    version: str
    count: int


class BrokerPage(msgspec.Struct, kw_only=True, rename="camel"):
    """A broker name: its servers, and the settings of its first one."""

    name: str
    cluster: str
    servers: list[BrokerView]
    groups: dict[str, list[tuple[str, str]]]
    settings: list[Setting]
    settings_problem: str | None = None
    write_times: list[WriteTime]
    producers: list[ProducerKind]
    producers_problem: str | None
    acts: list[AuditLine]
    """The newest changes that users of the console made at the broker."""


_ACTS_SHOWN: Final = 10
_ACTS: Final = frozenset(each.name for each in ACTIONS)
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
    producers, problems = await visit.cluster.answers.ask(
        ("producers", servers[0].address), lambda: read_producers(visit, servers[:1])
    )
    data = BrokerPage(
        name=name,
        cluster=servers[0].cluster,
        servers=servers,
        groups=group_values(servers[0].runtime),
        settings=settings,
        settings_problem=problem,
        write_times=parse_write_times(servers[0].runtime.get("putMessageDistributeTime", "")),
        producers=[
            ProducerKind(language=language, version=version, count=count)
            for (language, version), count in Counter(
                (each.language, each.version) for each in producers
            ).most_common()
        ],
        producers_problem=next(iter(problems.values()), None),
        acts=find_acts(visit.services.audit.newest(KEPT_MAX), name),
    )
    address = servers[0].address
    return Page(
        template="broker.html",
        title=name,
        data=data,
        command=visit.command("brokerStatus", "-b", address),
        is_live=True,
        values={
            "has_others": bool(others),
            "act_text": partial(act_text, visit.services.catalogue, visit.language),
        },
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


def parse_write_times(text: str) -> list[WriteTime]:
    """Return the counts of ``[<=0ms]:14 [0~10ms]:17``, up to the last that is not 0. Pure."""
    found = [(bounds, int(count)) for bounds, count in re.findall(r"\[([^\]]+)\]:(\d+)", text)]
    while len(found) > 1 and not found[-1][1]:
        del found[-1]
    largest = max([1, *(count for _, count in found)])
    return [
        WriteTime(bounds=bounds.replace("~", "–"), count=count, share=count / largest)
        for bounds, count in found
    ]


def find_acts(lines: list[AuditLine], broker: str) -> list[AuditLine]:
    """Return the newest changes of a broker, given all lines with the newest first. Pure."""
    return [line for line in lines if line.act in _ACTS and {broker, ALL} & set(line.what.split())][
        :_ACTS_SHOWN
    ]


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
