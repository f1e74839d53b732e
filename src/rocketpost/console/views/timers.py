"""Timers and transactions: messages that wait for their time, and half messages without an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from rocketpost.client.admin.transactions import HalfMessage
from rocketpost.client.message import ReceivedMessage
from rocketpost.console.bodies import make_visible
from rocketpost.console.collect.snapshot import BrokerView
from rocketpost.console.pages import Page
from rocketpost.console.shapes import count_bars
from rocketpost.console.views.scan import tail_topic
from rocketpost.console.visit import Visit
from rocketpost.errors import RocketpostError, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.names import TIMER_TOPIC

ROWS_MAX: Final = 100
SECONDS_MAX: Final = 5.0
TIMED_EACH: Final = 2000
"""Newest messages of a broker's timer topic that the page reads."""
_TOPIC_KEY: Final = "timingMessages_"
_NEVER_MS: Final = 2**62


class TimerRow(msgspec.Struct, kw_only=True, rename="camel"):
    """The timer of a broker; figures are None if the broker does not tell them."""

    broker: str
    problem: str | None
    is_on: bool | None
    waiting: int | None
    behind_seconds: int | None
    enqueue_tps: float | None
    dequeue_tps: float | None
    topics: dict[str, int]


class TimedRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A message that waits for its time."""

    id: str
    offset_id: str
    topic: str
    due_ms: int
    sent_ms: int
    broker: str


class HalfRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A half message."""

    id: str
    offset_id: str
    topic: str
    group: str
    born_ms: int
    checks: int
    broker: str
    keys: list[str]


class TimersPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    timers: list[TimerRow]
    timed: list[TimedRow]
    """Messages that wait, the next first, of the newest that were read."""
    timed_read: int
    timed_total: int
    by_minute: list[tuple[str, int, float]]
    pending: list[HalfRow]
    discarded: list[HalfRow]
    cut: list[str]
    """Lists that are not complete: pending, discarded."""
    problems: dict[str, str]


async def show_timers(visit: Visit) -> Page:
    """Show timers and transactions, asked at most every ten seconds for each user of brokers."""
    signer = visit.session.credentials if visit.session else None
    key = ("timers", visit.language, signer.access_key if signer else "")
    data = await visit.cluster.answers.ask(key, lambda: read_timers(visit))
    return Page(
        template="timers.html",
        title=visit.text("timers.title"),
        data=data,
        command=visit.command("transactions"),
        is_live=True,
        values={"rows_max": ROWS_MAX},
    )


async def read_timers(visit: Visit) -> TimersPage:
    """Ask the brokers for waiting messages and half messages."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    problems: dict[str, str] = {}
    cut: list[str] = []

    async def take(name: str, halves: AsyncIterator[HalfMessage]) -> list[HalfRow]:
        rows: list[HalfRow] = []
        try:
            async with asyncio.timeout(SECONDS_MAX):
                async for half in halves:
                    if len(rows) >= ROWS_MAX:
                        cut.append(name)
                        break
                    rows.append(_describe(half))
        except TimeoutError:
            cut.append(name)
        except RouteNotFound:
            return rows  # no broker has ever had a transaction
        except RocketpostError as error:
            problems[visit.text(f"timers.{name}")] = str(error)
        return rows

    timed, read, total = await _read_timed(visit, problems)
    return TimersPage(
        timers=[describe_timer(each) for each in snapshot.brokers if each.is_master],
        timed=timed[:ROWS_MAX],
        timed_read=read,
        timed_total=total,
        by_minute=count_due(timed),
        pending=await take("pending", visit.admin.transactions.pending()),
        discarded=await take("discarded", visit.admin.transactions.discarded()),
        cut=cut,
        problems=problems,
    )


async def _read_timed(
    visit: Visit, problems: dict[str, str]
) -> tuple[list[TimedRow], int, int]:  # fmt: skip
    """Return the messages that wait, by time, and how many of how many entries were read."""
    try:
        scan = await tail_topic(
            visit.admin, TIMER_TOPIC, lambda message: True, each_max=TIMED_EACH, kept_max=10**6
        )
    except RouteNotFound:
        return [], 0, 0
    except RocketpostError as error:
        problems[TIMER_TOPIC] = str(error)
        return [], 0, 0
    problems |= scan.problems
    return list_waiting(scan.messages, now_ms=time.time_ns() // 1_000_000), scan.scanned, scan.total


def list_waiting(messages: list[ReceivedMessage], *, now_ms: int) -> list[TimedRow]:
    """Return the messages of a timer topic that are not due yet, the next first. Pure."""
    recalled = {
        each.properties[names.TIMER_RECALLS].rpartition("+")[2]
        for each in messages
        if names.TIMER_RECALLS in each.properties
    }
    found: dict[str, TimedRow] = {}
    for message in sorted(messages, key=lambda each: each.store_ms):
        due = message.properties.get(names.TIMER_DELIVER_MS) or message.properties.get(
            names.TIMER_OUT_MS, ""
        )
        if names.TIMER_RECALLS in message.properties or not due.isdecimal() or int(due) <= now_ms:
            continue
        if message.message_id in recalled or int(due) > _NEVER_MS:
            continue
        found[message.message_id] = TimedRow(
            id=message.message_id,
            offset_id=message.offset_id,
            topic=make_visible(message.properties.get(names.REAL_TOPIC, "")),
            due_ms=int(due),
            sent_ms=message.born_ms,
            broker=message.queue.broker_name,
        )
    return sorted(found.values(), key=lambda row: row.due_ms)


def count_due(rows: list[TimedRow]) -> list[tuple[str, int, float]]:
    """Return how many are due in each of the next minutes that have some. Pure."""
    minutes = sorted({row.due_ms // 60_000 for row in rows})[:24]
    texts = {
        minute: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(minute * 60)) for minute in minutes
    }
    due = [texts[row.due_ms // 60_000] for row in rows if row.due_ms // 60_000 in texts]
    return sorted(count_bars(due, bars_max=24))


def describe_timer(broker: BrokerView) -> TimerRow:
    """Return the timer of a broker from its runtime values. Pure."""
    runtime = broker.runtime
    is_known = "timerReadBehind" in runtime
    return TimerRow(
        broker=broker.name,
        problem=broker.problem,
        is_on=is_known if broker.problem is None else None,
        waiting=_number(runtime.get("timerCongestNum")),
        behind_seconds=_number(runtime.get("timerReadBehind")),
        enqueue_tps=_rate(runtime.get("timerEnqueueTps")),
        dequeue_tps=_rate(runtime.get("timerDequeueTps")),
        topics={
            key.removeprefix(_TOPIC_KEY): int(value)
            for key, value in sorted(runtime.items())
            if key.startswith(_TOPIC_KEY) and value.isdecimal()
        },
    )


def _describe(half: HalfMessage) -> HalfRow:
    message = half.message
    return HalfRow(
        id=half.id,
        offset_id=message.offset_id,
        topic=make_visible(half.topic),
        group=make_visible(half.group),
        born_ms=message.born_ms,
        checks=half.checks,
        broker=message.queue.broker_name,
        keys=[make_visible(key) for key in message.keys],
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _rate(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
