"""The overview: traffic, brokers, the groups that are furthest behind, and what needs attention."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot
from rocketpost.console.collect.survey import Survey
from rocketpost.console.pages import Page
from rocketpost.console.shapes import draw_chart, duration_text, number_text
from rocketpost.console.visit import Visit, quote_name

_TOP: Final = 10
_DISK_HIGH: Final = 0.75
_DELAY_MS: Final = 60_000
_WORST_FIRST: Final = (
    "unreachable", "silent", "unready", "disk", "kept", "damaged", "follower", "offline", "still",
    "mixed", "flapping", "late", "dead", "halves", "timer",
)  # fmt: skip
_BROKER_REASONS: Final = {
    "unready": "notReadyReason", "kept": "segmentsKeptReason", "follower": "followProblem"
}  # fmt: skip
"""Alarms about a broker, by the runtime value that gives the reason; Apache's brokers have none."""


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
    survey_calls: int = 0
    """Calls of the last pass over groups, which is made once a minute."""


class Overview(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    in_tps: float | None
    out_tps: float | None
    in_bytes: float | None
    in_today: int | None
    out_today: int | None
    lag: int | None
    topics: int | None
    groups: int | None
    producers: int | None
    brokers: list[BrokerView]
    alarms: list[Alarm]
    by_lag: list[GroupView]
    by_delay: list[GroupView]
    growing: list[GroupView]
    round: Round


async def show_overview(visit: Visit) -> Page:
    """Show the state of the cluster."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    survey = visit.cluster.survey
    data = summarize(snapshot)
    now_ms = time.time_ns() // 1_000_000
    data.alarms += find_survey_alarms(survey, visit.text, now_ms=now_ms)
    data.alarms.sort(key=lambda each: _WORST_FIRST.index(each.kind))
    data.round.survey_calls = survey.calls
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
    late = sorted(
        (each for each in behind if each.delay_ms), key=lambda each: -(each.delay_ms or 0)
    )
    growing = sorted(
        (each for each in groups if (each.change or 0) > 0), key=lambda each: -(each.change or 0)
    )
    is_known = snapshot.is_known
    lags = [each.lag for each in groups]
    return Overview(
        in_tps=_total([each.in_tps for each in masters]),
        out_tps=_total([each.out_tps for each in masters]),
        in_bytes=_total([each.in_bytes for each in masters]),
        in_today=_total([each.in_today for each in masters]),
        out_today=_total([each.out_today for each in masters]),
        lag=sum(map(int, filter(None, lags))) if is_known and None not in lags else None,
        topics=sum(each.is_of_users for each in snapshot.topics.values()) if is_known else None,
        groups=len(groups) if is_known else None,
        producers=sum(snapshot.producers.values()) if is_known else None,
        brokers=snapshot.brokers,
        alarms=find_alarms(snapshot),
        by_lag=behind[:_TOP],
        by_delay=late[:_TOP],
        growing=growing[:_TOP],
        round=Round(
            at_ms=snapshot.at_ms,
            took_ms=snapshot.took_ms,
            calls=snapshot.calls,
            every_seconds=snapshot.every_seconds,
        ),
    )


def find_alarms(snapshot: Snapshot) -> list[Alarm]:
    """Return the things that need attention by the last round, the worst first. Pure."""
    alarms = []
    for each in snapshot.brokers:
        path = "/brokers/" + quote_name(each.name)

        def add(kind: str, detail: str, name: str = each.name, path: str = path) -> None:
            alarms.append(Alarm(kind=kind, subject=name, path=path, detail=detail))

        if each.problem is not None:
            if each.is_reached:
                add("silent", each.problem)
            else:
                add("unreachable", f"{each.address}: {each.problem}")
        if each.disk_ratio is not None and each.disk_ratio >= _DISK_HIGH:
            add("disk", f"{each.disk_ratio:.0%}")
        for kind, key in _BROKER_REASONS.items():
            if reason := each.runtime.get(key):
                add(kind, reason)
        damaged = each.runtime.get("damagedRanges", "")
        if damaged.isdecimal() and int(damaged):
            add("damaged", number_text(int(damaged)))
        behind = each.runtime.get("timerReadBehind", "")
        if each.is_master and behind.isdecimal() and int(behind) * 1000 > _DELAY_MS:
            alarms.append(
                Alarm(kind="timer", subject=each.name, path="/timers", detail=f"{behind} s")
            )
    groups = list(snapshot.groups.values())
    for kind in ("offline", "still", "mixed"):
        found = [each for each in groups if each.state == kind]
        for group in sorted(found, key=lambda each: -(each.lag or 0))[:_TOP]:
            detail = group.still_reason if kind == "still" else ""
            alarms.append(_group_alarm(kind, group.name, detail))
    late = [each for each in groups if each.state == "behind" and (each.delay_ms or 0) > _DELAY_MS]
    for group in sorted(late, key=lambda each: -(each.delay_ms or 0))[:_TOP]:
        alarms.append(_group_alarm("late", group.name))
    return alarms


def find_survey_alarms(
    survey: Survey, text: Callable[..., str], *, now_ms: int
) -> list[Alarm]:  # fmt: skip
    """Return the things that need attention by the answers of a survey."""
    alarms = []
    if survey.halves is not None:
        alarms.append(
            Alarm(
                kind="halves",
                subject=text("timers.title"),
                path="/timers",
                detail=text(
                    "alarm.halves_detail",
                    count=f"{survey.halves.count:,}{'+' if survey.halves.is_cut else ''}",
                    age=duration_text((now_ms - survey.halves.oldest_ms) / 1000),
                ),
            )
        )
    dead = sorted(survey.dead.items(), key=lambda item: -item[1].count)
    for name, answer in dead[:_TOP]:
        if answer.count:
            alarms.append(
                Alarm(
                    kind="dead",
                    subject=name,
                    path="/dead-letters/" + quote_name(name),
                    detail=number_text(answer.count),
                )
            )
    for name, queues in list(survey.holdings.find_flapping(now_ms).items())[:_TOP]:
        alarms.append(_group_alarm("flapping", name, ", ".join(queues[:5])))
    return alarms


def _group_alarm(kind: str, name: str, detail: str = "") -> Alarm:
    return Alarm(kind=kind, subject=name, path="/groups/" + quote_name(name), detail=detail)


def _total(values: list[Any]) -> Any:
    """Return the sum; None if one is unknown, because a part is not the whole."""
    return None if not values or None in values else sum(values)
