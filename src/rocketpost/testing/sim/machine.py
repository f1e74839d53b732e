"""Simulated machines, and the processes that run on them.

All machines share one event loop. The code of a process runs in a context that names it, which
tasks, callbacks and timers inherit. So the simulation knows of every call on which machine it is
made, which clock it reads, and which disk it writes; and it can end a process between two calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketpost.store.log.workers import Step, Worker
from rocketpost.testing.sim.disk import SimulatedDisk
from rocketpost.testing.sim.workers import SteppedWorker

if TYPE_CHECKING:
    from rocketpost.testing.sim.loop import SimulatedLoop

EPOCH_NS: Final = 1_767_225_600_000_000_000
"""The wall-clock time at which every simulation begins: 2026-01-01, 00:00 UTC."""
DISK_BYTES: Final = 2**36
_WORK_SECONDS: Final = (0.000_05, 0.000_5)
_FIRST_PID: Final = 100

T = TypeVar("T")

Program = Callable[[], Coroutine[Any, Any, object]]
"""Starts the main coroutine of a process."""


class Process:
    """One run of a program on a machine, from its start until it ends or is killed."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine = machine
        self.pid = pid
        self.is_alive = True
        self.main: asyncio.Task[None] | None = None
        """The task of its program."""
        self._spent: float | None = None  # by the work in a thread that is being done
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)

    def __repr__(self) -> str:
        return f"<process {self.pid} of {self.machine.name}>"

    @property
    def monotonic_ns(self) -> int:
        """Nanoseconds of the machine's clock that is never set."""
        return int((self.machine.loop.time() + (self._spent or 0.0)) * 1_000_000_000)

    @property
    def wall_ns(self) -> int:
        """Nanoseconds since the epoch by the machine's clock."""
        return EPOCH_NS + self.monotonic_ns + self.machine.clock_offset_ns

    def work(self, function: Callable[[], T]) -> tuple[T, float]:
        """Do work of a thread; returns its result, and the seconds for which it slept."""
        self._spent = 0.0
        try:
            result = function()
            return result, self._spent
        finally:
            self._spent = None

    def sleep(self, seconds: float) -> None:
        """Let the work of a thread take longer; on the loop, everything waits for it."""
        if self._spent is None:
            self.machine.loop.advance(seconds)
        else:
            self._spent += seconds


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "simulated process", default=None
)


def current_process(context: contextvars.Context | None = None) -> Process | None:
    """Return the process whose code runs now, or that a context belongs to; None if none."""
    return _current.get() if context is None else context.get(_current)


@dataclass(eq=False, slots=True)
class Machine:
    """One simulated machine.

    Attributes:
        name: Its name.
        ip: Its address.
        loop: The loop of the simulation.
        rng: The source of its delays.
        program: Starts its program, if it has one.
        process: The process that runs now.
        disk: Its disk as the running process uses it.
        is_on: Whether it has power.
        clock_offset_ns: Difference between its wall clock and the right time.
        disk_seconds: Time that work on its disk takes in addition.
    """

    name: str
    ip: str
    loop: SimulatedLoop
    rng: random.Random
    program: Program | None = None
    process: Process | None = None
    disk: MachineDisk = field(init=False)
    is_on: bool = True
    clock_offset_ns: int = 0
    disk_seconds: float = 0.0
    _pid: int = _FIRST_PID

    def __post_init__(self) -> None:
        self.disk = MachineDisk(self)

    def begin_process(self) -> Process:
        """Return a new process, which finds the files that the one before has left."""
        assert self.process is None, f"{self.name} runs already"
        self.is_on = True
        self._pid += 1
        self.process = Process(self, self._pid)
        return self.process

    def end_process(self) -> Process | None:
        """End the process that runs, if one does: none of its code runs any more."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.is_alive = False
        before, self.disk = self.disk, MachineDisk(self)
        self.disk.take_over(before)
        return process

    def lose_power(self) -> Process | None:
        """End the process and forget everything that is not on disk."""
        process = self.end_process()
        self.is_on = False
        left = self.disk.after_power_cut(self.rng)
        self.disk = MachineDisk(self)
        self.disk.take_over(left)
        return process

    def draw_work_seconds(self) -> float:
        """Return the duration of some work in a thread, which as a rule uses the disk."""
        low, high = _WORK_SECONDS
        return low + (high - low) * self.rng.random() + self.disk_seconds * self.rng.random()


class MachineDisk(SimulatedDisk):
    """The disk of a machine, as one process uses it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__(capacity=DISK_BYTES)

    @property
    def now_ms(self) -> int:
        """The time of the machine's clock."""
        now_ns = EPOCH_NS + int(self._machine.loop.time() * 1_000_000_000)
        return (now_ns + self._machine.clock_offset_ns) // 1_000_000

    @now_ms.setter
    def now_ms(self, ms: int) -> None:
        """Ignore a time: the machine's clock counts."""

    def boot_id(self) -> str:
        """Return a name of the machine's current start."""
        return f"{self._machine.name} {super().boot_id()}"

    def make_worker(self, name: str, step: Step) -> Worker:
        """Return a worker whose steps are events of the simulation."""
        return SteppedWorker(self._machine, step)

    def send_file(self, socket_fd: int, fd: int, offset: int, size: int) -> int:
        """Send bytes of a file to a simulated socket."""
        data = self.pread(fd, size, offset)
        return self._machine.loop.simulation.socket_of(socket_fd).send(data)
