"""Term table and hard state, stopped at every file operation: no promise is ever forgotten."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.member.hard_state import HardState, HardStateFile
from rocketpost.store.member.term_file import Spans, TermFile
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import PowerCut, formatted

PATHS = ("/store/hard-state-0", "/store/hard-state-1")
STATES = [
    HardState(1, None),
    HardState(1, "n0"),
    HardState(1, "n0", 100, 200),
    HardState(2, None, 100, 200),
    HardState(2, "n2", 100, 150),
    HardState(5, "n1", 300, 300),
]
TABLES: list[tuple[tuple[int, int], ...]] = [
    ((1, 0),),
    ((1, 0), (2, 100)),
    ((1, 0), (2, 100), (5, 300)),
    ((1, 0), (2, 100)),
    ((1, 0), (2, 100), (6, 300)),
    ((2, 100), (6, 300)),
    (),
]

Leave = Callable[[SimulatedDisk, random.Random], SimulatedDisk]
STOPS: dict[str, Leave] = {
    "kill": lambda disk, rng: disk.after_kill(),
    "power": lambda disk, rng: disk.after_power_cut(rng),
}


def stop_at(call: int) -> Callable[[int, str, str], int | None]:
    def fault(number: int, _name: str, _path: str) -> int | None:
        if number >= call:
            raise PowerCut
        return None

    return fault


def save_states(disk: SimulatedDisk, saved: list[HardState]) -> None:
    file = HardStateFile(disk, PATHS)
    file.load_blocking()
    for state in STATES:
        file.save_blocking(state)
        saved.append(state)


def save_tables(disk: SimulatedDisk, saved: list[Spans]) -> None:
    file = TermFile(disk, "/store/epochFileCheckpoint")
    file.load_blocking()
    file.replace_blocking((*file.spans, (1, 0)))
    saved.append(file.spans)
    file.replace_blocking((*file.spans, (2, 100)))
    saved.append(file.spans)
    file.replace_blocking((*file.spans, (5, 300)))
    saved.append(file.spans)
    file.cut_blocking(300)
    saved.append(file.spans)
    file.replace_blocking((*file.spans, (6, 300)))
    saved.append(file.spans)
    file.forget_before_blocking(200)
    saved.append(file.spans)
    file.cut_blocking(0)
    saved.append(file.spans)


@pytest.mark.parametrize("how", STOPS)
def test_a_hard_state_stopped_at_every_operation(how: str) -> None:
    """The state after a stop is the last that was saved, or the one that was being saved."""
    for call in itertools.count(1):
        for chance in range(4):
            rng = random.Random(call * 10 + chance)
            disk = formatted()
            disk.fault = stop_at(disk.calls + call)
            saved: list[HardState] = []
            try:
                save_states(disk, saved)
                is_done = True
            except PowerCut:
                is_done = False
            disk.fault = None
            disk = STOPS[how](disk, rng)
            allowed = [saved[-1] if saved else None, *STATES[len(saved) :][:1]]
            # The start that repairs is stopped as well, at each of its operations.
            for again in itertools.count(1):
                copy = disk.copy()
                copy.fault = stop_at(copy.calls + again)
                try:
                    found = HardStateFile(copy, PATHS).load_blocking()
                except PowerCut:
                    copy.fault = None
                    copy = STOPS[how](copy, rng)
                    found = HardStateFile(copy, PATHS).load_blocking()
                    assert found in allowed
                    continue
                assert found in allowed
                # From now on it may have answered a peer: damage to either file takes nothing.
                copy.fault = None
                for path in PATHS if found is not None else ():
                    harmed = STOPS[how](copy, rng)
                    harmed.flip(path, rng.randrange(8 * 4096))
                    assert HardStateFile(harmed, PATHS).load_blocking() == found
                break
        if is_done:
            assert saved == STATES
            return


@pytest.mark.parametrize("how", STOPS)
def test_a_term_table_stopped_at_every_operation(how: str) -> None:
    for call in itertools.count(1):
        for chance in range(4):
            rng = random.Random(call * 10 + chance)
            disk = formatted()
            disk.fault = stop_at(disk.calls + call)
            saved: list[Spans] = []
            try:
                save_tables(disk, saved)
                is_done = True
            except PowerCut:
                is_done = False
            disk.fault = None
            disk = STOPS[how](disk, rng)
            found, problem = TermFile(disk, "/store/epochFileCheckpoint").load_blocking()
            assert found in [saved[-1] if saved else None, *TABLES[len(saved) :][:1]]
            assert problem == "" or "is missing" in problem
            for path in ("/store/epochFileCheckpoint", "/store/epochFileCheckpoint.bak"):
                if found is not None:
                    harmed = STOPS[how](disk, rng)
                    harmed.flip(path, rng.randrange(8 * len(harmed.read_bytes(path))))
                    again, problem = TermFile(harmed, "/store/epochFileCheckpoint").load_blocking()
                    assert again == found
                    assert "damaged" in problem
        if is_done:
            assert saved == TABLES
            return


@pytest.mark.parametrize("code", [5, 28])
def test_an_operation_that_fails_leaves_what_was_saved(code: int) -> None:
    """A failed write or sync is an error, and the next start has the old state or the new one."""
    for call in itertools.count(1):
        disk = formatted()
        first = disk.calls

        def fault(number: int, _name: str, _path: str, at: int = first + call) -> int | None:
            return code if number == at else None

        disk.fault = fault
        saved: list[HardState] = []
        tables: list[Spans] = []
        failed = 0
        try:
            save_states(disk, saved)
        except (StoreError, OSError):
            failed += 1
        try:
            save_tables(disk, tables)
        except OSError:
            failed += 1
        disk.fault = None
        for how in STOPS:
            left = STOPS[how](disk, random.Random(call))
            state = HardStateFile(left, PATHS).load_blocking()
            assert state in [saved[-1] if saved else None, *STATES[len(saved) :][:1]]
            spans = TermFile(left, "/store/epochFileCheckpoint").load_blocking().spans
            assert spans in [tables[-1] if tables else None, *TABLES[len(tables) :][:1]]
        if not failed:
            return
