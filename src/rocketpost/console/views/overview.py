"""The overview: traffic, brokers, the groups that are furthest behind, and what needs attention."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot
from rocketpost.console.pages import Page
from rocketpost.console.shapes import draw_chart
from rocketpost.console.visit import Visit, quote_name

_TOP: Final = 10
_DISK_HIGH: Final = 0.75
_DELAY_MS: Final = 60_000


class Alarm(msgspec.Struct, kw_only=True, rename="camel"):
    """Something that needs attention."""

    kind: str
    subject: str
    path: str
    detail: str = ""


class Round(msgspec.Struct, kw_only=True, rename="camel"):
    """The cost of asking the brokers once."""

    at_ms: int
    took_ms: int
    calls: int
    every_seconds: float


class Overview(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    in_tps: float | None
    out_tps: float | None
    in_today: int | None
    out_today: int | None
    lag: int | None
    topics: int
    groups: int
    producers: int
    brokers: list[BrokerView]
    alarms: list[Alarm]
    by_lag: list[GroupView]
    growing: list[GroupView]
    round: Round


async def show_overview(visit: Visit) -> Page:
    """Show the state of the cluster."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    data = summarize(snapshot)
    rates = visit.cluster.collector.rates
    charts: dict[str, Any] = {}
    for name in ("in", "out"):
        series = rates.find(name)
        charts[name] = draw_chart(series.fine.points(), width=560, height=96) if series else None
    return Page(
        template="overview.html",
        title=visit.text("nav.overview"),
        data=data,
        command=visit.command("clusterList"),
        is_live=True,
        values={"charts": charts},
    )


def summarize(snapshot: Snapshot) -> Overview:
    """Return the data of the page. Pure."""
    masters = [each for each in snapshot.brokers if each.is_master]
    groups = list(snapshot.groups.values())
    behind = sorted((each for each in groups if each.lag), key=lambda each: -(each.lag or 0))
    growing = sorted(
        (each for each in groups if (each.change or 0) > 0), key=lambda each: -(each.change or 0)
    )
    unknown = any(each.lag is None for each in groups)
    return Overview(
        in_tps=_total([each.in_tps for each in masters]),
        out_tps=_total([each.out_tps for each in masters]),
        in_today=_total([each.in_today for each in masters]),
        out_today=_total([each.out_today for each in masters]),
        lag=None if unknown else sum(each.lag or 0 for each in groups),
        topics=sum(1 for each in snapshot.topics.values() if each.kind not in ("system", "retry")),
        groups=len(groups),
        producers=sum(snapshot.producers.values()),
        brokers=snapshot.brokers,
        alarms=find_alarms(snapshot),
        by_lag=behind[:_TOP],
        growing=growing[:_TOP],
        round=Round(
            at_ms=snapshot.at_ms,
            took_ms=snapshot.took_ms,
            calls=snapshot.calls,
            every_seconds=snapshot.every_seconds,
        ),
    )


def find_alarms(snapshot: Snapshot) -> list[Alarm]:
    """Return what needs attention, the worst first. Pure."""
    alarms = [
        Alarm(
            kind="silent",
            subject=each.name,
            path="/brokers/" + quote_name(each.name),
            detail=each.problem or "",
        )
        for each in snapshot.silent
    ]
    for each in snapshot.brokers:
        if each.disk_ratio is not None and each.disk_ratio >= _DISK_HIGH:
            detail = f"{each.disk_ratio:.0%}"
            alarms.append(
                Alarm(
                    kind="disk",
                    subject=each.name,
                    path="/brokers/" + quote_name(each.name),
                    detail=detail,
                )
            )
    for each in snapshot.brokers:
        behind = each.runtime.get("timerReadBehind", "")
        if each.is_master and behind.isdecimal() and int(behind) * 1000 > _DELAY_MS:
            alarms.append(
                Alarm(kind="timer", subject=each.name, path="/timers", detail=f"{behind} s")
            )
    still = [each for each in snapshot.groups.values() if each.state == "still"]
    for group in sorted(still, key=lambda each: -(each.lag or 0))[:_TOP]:
        alarms.append(
            Alarm(
                kind="still",
                subject=group.name,
                path="/groups/" + quote_name(group.name),
                detail=group.still_reason,
            )
        )
    late = [
        each
        for each in snapshot.groups.values()
        if each.state == "behind" and (each.delay_ms or 0) > _DELAY_MS
    ]
    for group in sorted(late, key=lambda each: -(each.delay_ms or 0))[:_TOP]:
        alarms.append(
            Alarm(kind="late", subject=group.name, path="/groups/" + quote_name(group.name))
        )
    return alarms


def _total(values: list[Any]) -> Any:
    """Return the sum; None if one is unknown, because a part is not the whole."""
    return None if not values or None in values else sum(values)
