"""``startMonitoring``: looks at groups again and again, and says which of them do not keep up.

On a terminal the table of all groups is renewed in place. In a pipe each round is a line for every
group that is in an alarm or has just left one, and with ``--json`` an object a line for all of
them. The exit status tells of the last round: 0 all is well, 3 an alarm, 1 a broker could not be
asked; so ``-r 1`` is a check for scripts, and ``-u`` waits until a backlog is gone.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from rocketpost.admin.command import admin_command, few_at_once, say
from rocketpost.admin.lag_watch import (
    VERDICTS,
    Alarm,
    Sample,
    Thresholds,
    Verdict,
    changed,
    exit_code,
    judge,
    row,
)
from rocketpost.admin.render import time_text
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.errors import ClientError, Fault, RouteNotFound
from rocketpost.model.names import RETRY_PREFIX

_STYLES: Final = {Alarm.OK: "green", Alarm.UNKNOWN: "yellow"}
_NOTHING: Final = ConsumeState(queues={})


@admin_command("startMonitoring")
@click.option("-g", "--groupName", "groups", multiple=True, metavar="GROUP", help="Only these.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only what the groups do in this topic.")
@click.option("-i", "--interval", type=click.FloatRange(0.1), default=60.0, show_default=True,
              help="Seconds between rounds.")  # fmt: skip
@click.option("-r", "--rounds", type=click.IntRange(1), help="How many; without end if not given.")
@click.option("-l", "--lag", "messages", type=click.IntRange(0), help="Alarm if more wait.")
@click.option(
    "-d", "--delay", "seconds", type=click.FloatRange(0), help="Alarm if one waits longer."
)
@click.option("-u", "--untilOk", "until_ok", is_flag=True, help="End after a round without alarm.")
@click.option("--json", "as_json", is_flag=True, help="Print an object a line and group.")
async def start_monitoring(
    admin: AdminClient,
    *,
    groups: Sequence[str],
    topic: str | None,
    interval: float,
    rounds: int | None,
    messages: int | None,
    seconds: float | None,
    until_ok: bool,
    as_json: bool,
) -> None:
    """Watch how far groups are behind; exit status 3 if the last round had an alarm."""
    view = _Lines(as_json=as_json) if as_json or not sys.stdout.isatty() else _Screen()
    thresholds = Thresholds(messages, seconds)
    stop = _stopped_by_signal()
    before: dict[str, Sample] = {}
    verdicts: list[Verdict] = []
    with view:
        for number in _numbers(rounds):
            samples = await _round(admin, groups, topic, with_delay=seconds is not None)
            verdicts = [judge(each, before.get(each.group), thresholds) for each in samples]
            before = {each.group: each for each in samples}
            view.show(verdicts)
            if number == rounds or (until_ok and not exit_code(verdicts)):
                break
            if await _wait(stop, interval):
                break
    raise SystemExit(exit_code(verdicts))


def _numbers(rounds: int | None) -> Sequence[int]:
    return range(1, (rounds or sys.maxsize - 1) + 1)


# Asking.


async def _round(
    admin: AdminClient, groups: Sequence[str], topic: str | None, *, with_delay: bool
) -> list[Sample]:
    names = groups or [
        name.removeprefix(RETRY_PREFIX)
        for name in sorted(await admin.cluster.topics())
        if name.startswith(RETRY_PREFIX)
    ]
    return await few_at_once(
        names, lambda group: _sample(admin, group, topic, with_delay=with_delay)
    )


async def _sample(admin: AdminClient, group: str, topic: str | None, *, with_delay: bool) -> Sample:
    try:
        state = await admin.groups.progress(group, topic)
        members = await _members(admin, group)
        delay_ms = await _delay_ms(admin, group, state) if with_delay else None
    except (ClientError, Fault) as error:
        return Sample(group, 0, _NOTHING, problem=str(error))
    return Sample(group, members, state, delay_ms)


async def _members(admin: AdminClient, group: str) -> int:
    try:
        connected = await admin.groups.connections(group)
    except (ConsumerNotOnline, RouteNotFound):
        return 0
    return len({each.client_id for each in connected.connection_set})


async def _delay_ms(admin: AdminClient, group: str, state: ConsumeState) -> int:
    """Return for how long the message has waited that has waited longest."""
    longest = 0
    for topic in sorted({queue.topic for queue in state.queues}):
        route = await admin.cluster.route(topic)
        for address in [each.master for each in route.broker_datas if each.master]:
            spans = await admin.groups.time_spans(address, group, topic)
            longest = max([longest, *(span.delay_time for span in spans)])
    return longest


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        return stop  # signals are the main thread's
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _wait(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for the next round; return whether a signal came instead."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


# Showing.


class _Lines:
    """Rounds for pipes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._before: dict[str, Alarm] = {}

    def __enter__(self) -> None:
        if not self._as_json:
            say(f"{'#Time':<19}  {VERDICTS.heading()}")

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, verdicts: Sequence[Verdict]) -> None:
        now_ms = time.time_ns() // 1_000_000
        if self._as_json:
            for values in VERDICTS.objects(map(row, verdicts)):
                say(msgspec.json.encode({"time": now_ms, **values}).decode())
        else:
            for verdict in changed(verdicts, self._before):
                say(f"{time_text(now_ms)}  {VERDICTS.line(row(verdict))}")
        self._before = {verdict.group: verdict.alarm for verdict in verdicts}
        sys.stdout.flush()


class _Screen:
    """One table on a terminal, renewed with each round."""

    def __init__(self) -> None:
        from rich.live import Live  # takes long to import, and few commands need it

        self._live = Live(auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, verdicts: Sequence[Verdict]) -> None:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=time_text(time.time_ns() // 1_000_000))
        for name in ("group", "members", "behind", "change", "delay", "state", "why"):
            table.add_column(name, justify="right" if name in ("behind", "change") else "left")
        for verdict in verdicts:
            *places, state, why = VERDICTS.cells(row(verdict))
            style = _STYLES.get(verdict.alarm, "bold red")
            table.add_row(*map(Text, places), Text(state, style=style), Text(why))
        self._live.update(table, refresh=True)


COMMANDS: Final = [start_monitoring]
