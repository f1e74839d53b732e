"""Stand-ins for the standard library's clocks and sources of chance, while a simulation is open.

Code of a simulated process that calls ``time.time()``, ``time.monotonic()``, ``time.sleep()``,
``os.getpid()``, ``os.urandom()``, ``uuid.uuid4()`` or functions of ``random`` gets the values of
its simulated machine. That includes the handlers under test. Other threads, and code outside of
the simulation, get the real ones. ``datetime.now()`` cannot be replaced: it stays real.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rocketpost.testing.sim.machine import Process, current_process
from rocketpost.transport.unique_id import draw_prefix


def _stand_in(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``simulated`` with the current process, if there is one."""

    def call(*args: Any) -> Any:
        process = current_process()
        return real(*args) if process is None else simulated(process, *args)

    return call


def _sleep(process: Process, seconds: float) -> None:
    process.sleep(seconds)


def _seconds_of_wall(process: Process) -> float:
    return process.wall_ns / 1_000_000_000


def _seconds(process: Process) -> float:
    return process.monotonic_ns / 1_000_000_000


def _monotonic_ns(process: Process) -> int:
    return process.monotonic_ns


def _wall_ns(process: Process) -> int:
    return process.wall_ns


def _pid(process: Process) -> int:
    return process.pid


def _random_bytes(process: Process, size: int) -> bytes:
    return random.randbytes(size)


_SOURCES: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (time, "time", _seconds_of_wall),
    (time, "time_ns", _wall_ns),
    (time, "monotonic", _seconds),
    (time, "monotonic_ns", _monotonic_ns),
    (time, "perf_counter", _seconds),
    (time, "perf_counter_ns", _monotonic_ns),
    (time, "sleep", _sleep),
    (os, "getpid", _pid),
    (os, "urandom", _random_bytes),
    (random, "_urandom", _random_bytes),
)


@contextmanager
def simulated_sources(seed: int, process: Process) -> Iterator[None]:
    """Replace clocks and chance until the end of the context.

    Args:
        seed: The seed of the functions of ``random``.
        process: Its chance and address are in the ids of messages.

    Raises:
        RuntimeError: Another simulation is open.
    """
    if time.time.__name__ == "call":
        raise RuntimeError("another simulation is open in this process: close it first")
    state = random.getstate()
    with contextmanager(_replaced)():
        random.seed(f"rocketpost {seed}")
        try:
            process.context.run(draw_prefix, process.machine.ip)
            yield
        finally:
            random.setstate(state)
    draw_prefix()


def _replaced() -> Iterator[None]:
    patches = [
        mock.patch.object(module, name, _stand_in(getattr(module, name), simulated))
        for module, name, simulated in _SOURCES
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
