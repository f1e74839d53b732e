"""The command ``startMonitoring``: reports groups that do not keep up, in rounds.

On a terminal the table of all groups is updated in place. In a pipe each round prints a line for
every group that has an alarm or had one in the round before; with ``--json`` it prints an object
per line for every group. The exit status is that of the last round: 0 no alarm, 3 an alarm, 1 a
broker did not answer. So ``-r 1`` is a check for scripts, and ``-u`` waits until a backlog is gone.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import Failure, admin_command, say
from rocketpost.admin.render import Column, Table, time_text
from rocketpost.client.admin import AdminClient
from rocketpost.diagnosis.group_alarms import Alarm, Sample, Thresholds, Verdict, judge_group
from rocketpost.diagnosis.group_samples import sample_groups, sample_of_silence

_STYLES: Final = {Alarm.OK: "green", Alarm.UNKNOWN: "yellow"}


@admin_command("startMonitoring")
@click.option("-g", "--groupName", "groups", multiple=True, metavar="GROUP", help="Only these.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only what the groups do in this topic.")
@click.option("-i", "--interval", type=click.FloatRange(0.1), default=60.0, show_default=True,
              help="Seconds between rounds.")  # fmt: skip
@click.option(
    "-r", "--rounds", type=click.IntRange(1), help="Number of rounds; unlimited if not given."
)
@click.option("-l", "--lag", "messages", type=click.IntRange(0), help="Alarm if more wait.")
@click.option(
    "-d", "--delay", "seconds", type=click.FloatRange(0), help="Alarm if one waits longer."
)
@click.option("-u", "--untilOk", "until_ok", is_flag=True, help="End after a round without alarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per group and line.")
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
    stop = _stop_on_signal()
    before: dict[str, Sample] = {}
    verdicts: list[Verdict] = []
    with view:
        for number in _number_rounds(rounds):
            try:
                await require_brokers(admin)
                samples = await sample_groups(admin, groups, topic, with_delay=seconds is not None)
            except Failure as failure:
                if not before:
                    raise
                samples = [sample_of_silence(group, failure.message) for group in before]
            verdicts = [judge_group(each, before.get(each.group), thresholds) for each in samples]
            before = {each.group: each for each in samples}
            view.show(verdicts)
            if number == rounds or (until_ok and not exit_code(verdicts)):
                break
            if await _wait(stop, interval):
                break
    raise SystemExit(exit_code(verdicts))


def _number_rounds(rounds: int | None) -> Sequence[int]:
    return range(1, (rounds or sys.maxsize - 1) + 1)


VERDICTS: Final = Table(
    "%-40s  %-7s  %-12s  %-10s  %-10s  %-8s  %s",
    [
        Column("#Group", "group"),
        Column("#Count", "members"),
        Column("#Diff Total", "diffTotal"),
        Column("#Change", "change", lambda value: "" if value is None else f"{value:+d}"),
        Column("#Delay", "delayMs", lambda ms: "" if ms is None else f"{ms / 1000:.1f} s"),
        Column("#State", "state"),
        Column("#Why", "why"),
    ],
)


def verdict_row(verdict: Verdict) -> tuple[object, ...]:
    """Return a verdict as a row of :data:`VERDICTS`."""
    return (*verdict[:5], verdict.alarm.value, verdict.why)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 3 if there is an alarm, else 1 if the state of some group is unknown, else 0."""
    alarms = {verdict.alarm for verdict in verdicts}
    if alarms - {Alarm.OK, Alarm.UNKNOWN}:
        return 3
    return 1 if Alarm.UNKNOWN in alarms else 0


def select_for_log(verdicts: Sequence[Verdict], before: Mapping[str, Alarm]) -> list[Verdict]:
    """Return the verdicts that a log shows: alarms, and groups that had one in the round before."""
    return [
        verdict
        for verdict in verdicts
        if verdict.alarm is not Alarm.OK or before.get(verdict.group, Alarm.OK) is not Alarm.OK
    ]


def _stop_on_signal() -> asyncio.Event:
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        return stop  # only the main thread may handle signals
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _wait(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for the next round; return whether a signal ended the wait."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


# Views.


class _Lines:
    """Prints rounds to a pipe, line by line."""

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
            for values in VERDICTS.objects(map(verdict_row, verdicts)):
                say(msgspec.json.encode({"time": now_ms, **values}).decode())
        else:
            for verdict in select_for_log(verdicts, self._before):
                say(f"{time_text(now_ms)}  {VERDICTS.line(verdict_row(verdict))}")
        self._before = {verdict.group: verdict.alarm for verdict in verdicts}
        sys.stdout.flush()


class _Screen:
    """Shows one table on a terminal, updated in each round."""

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
            *values, state, why = VERDICTS.cells(verdict_row(verdict))
            style = _STYLES.get(verdict.alarm, "bold red")
            table.add_row(*map(Text, values), Text(state, style=style), Text(why))
        self._live.update(table, refresh=True)


COMMANDS: Final = [start_monitoring]
