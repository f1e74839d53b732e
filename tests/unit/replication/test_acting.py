"""Who acts for a lost master, and how brokers start: traces of both machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.replication.acting import (
    Act,
    Ask,
    AwaitLink,
    Duties,
    Duty,
    FollowMaster,
    GoOnline,
    Look,
    PreOnline,
    StandBack,
    Step,
    TakeBack,
    Tell,
)

TRACES = Path(__file__).parent / "traces"


class Trace(NamedTuple):
    """A title, and events with the lines that each of them prints."""

    title: str
    events: list[tuple[str, list[str]]]


def traces_in(name: str) -> Iterator[Trace]:
    for block in (TRACES / name).read_text().split("\n\n"):
        title, *lines = block.strip().splitlines()
        events: list[tuple[str, list[str]]] = []
        for line in lines:
            if line.startswith(" "):
                events[-1][1].append(line.strip())
            else:
                events.append((line, []))
        yield Trace(title.removeprefix("# "), events)


def members_in(words: list[str]) -> dict[int, str]:
    pairs = (word.split("=") for word in words)
    return {int(key): address for key, address in pairs}


def text_of_duty(duty: Duty) -> str:
    match duty:
        case Act():
            return "act"
        case StandBack():
            return "stand back"
        case FollowMaster(address, ha_address):
            return f"follow {address}" + (f" ha {ha_address}" if ha_address else "")


def text_of_step(step: Step) -> str:
    match step:
        case Look(pause_ms):
            return "look" + (f" after {pause_ms} ms" if pause_ms else "")
        case Tell(address):
            return f"tell {address}"
        case Ask(address):
            return f"ask {address}"
        case AwaitLink(address, timeout_ms):
            return f"await link of {address} for {timeout_ms} ms"
        case TakeBack(address):
            return f"take back from {address}"
        case GoOnline():
            return "go online"


@pytest.mark.parametrize("trace", list(traces_in("duties.txt")), ids=lambda trace: trace.title)
def test_duties(trace: Trace) -> None:
    (first, _), *events = trace.events
    _, broker_id, _, address = first.split()
    duties = Duties(broker_id=int(broker_id), address=address)
    for event, expected in events:
        kind, *words = event.split()
        if kind == "members":
            changes = duties.take_members(members_in(words))
        else:
            changes = duties.take_notice(int(words[0]), words[1], words[3] if words[3:] else "")
        state = f"alive {duties.alive}, smallest {duties.min_id}"
        assert [*map(text_of_duty, changes), state] == expected, event
        assert duties.is_acting == (duties.min_id == int(broker_id) != 0)


@pytest.mark.parametrize("trace", list(traces_in("pre_online.txt")), ids=lambda trace: trace.title)
def test_pre_online(trace: Trace) -> None:
    (first, expected), *events = trace.events
    _, broker_id, *more = first.split()
    tries = int(more[1]) if more else 5
    machine = PreOnline(broker_id=int(broker_id), tries_max=tries)
    assert shown(machine) == expected
    for event, expected in events:
        kind, _, rest = event.partition(" ")
        if kind == "members":
            machine.take_members(members_in(rest.split()))
        elif kind == "ok":
            machine.succeed()
        else:
            machine.fail(rest)
        assert shown(machine) == expected, event


def shown(machine: PreOnline) -> list[str]:
    problems = [f"problem {key}: {reason}" for key, reason in machine.problems.items()]
    return [text_of_step(machine.step), *problems]
