"""A whole cluster in one test: servers, clients and faults, in virtual time, from a seed.

``SimulatedCluster`` runs the real servers, stores and clients on simulated machines: without
sockets, threads or files, and without waiting. The same seed gives the same run, to the last byte
of every file. ``docs/guide/simulation.md`` has examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import hashlib
import inspect
import logging
import random
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from rocketpost.client import Producer, PushConsumer
from rocketpost.server.broker import BrokerServer
from rocketpost.server.clock import BrokerClock
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.testing.sim.loop import SimulatedLoop
from rocketpost.testing.sim.machine import Machine, Process, Program, current_process
from rocketpost.testing.sim.simulation import SimulatedNetwork
from rocketpost.testing.sim.sources import simulated_sources

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME_SERVER: Final = "ns"
TEST: Final = "test"
"""The machine on which the code of the test runs."""
_NAME_SERVER_PORT: Final = 9876
_BROKER_PORT: Final = 10911
_GROUP_PORT: Final = 40911
_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.01
_WAITS_MAX: Final = 1000

_SETTINGS: Mapping[str, str] = {
    "storePathRootDir": "/store",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": str(256 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 300),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "maxMessageSize": str(64 * 1024),
}


class _KilledError(BaseException):
    """Ends the coroutines of a process that was killed, when their memory is released."""


class SimulatedCluster:
    """A name server and brokers on simulated machines. Use it as a context manager.

    The machines of the brokers are ``n0``, ``n1`` and so on, that of the name server is ``ns``,
    and the code given to :meth:`run` runs on ``test``. Methods that name a machine accept any of
    them, and those of :meth:`spawn`.

    Args:
        nodes: Number of brokers. One is a broker of its own; more are the members of one group,
            which elects its leader.
        seed: Everything that is left to chance follows from it.
        settings: Properties of the brokers, by RocketMQ's keys, in addition to those of the
            simulation, which keep files small.
    """

    def __init__(
        self, *, nodes: int = 1, seed: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.seed = seed
        self.loop = SimulatedLoop()
        self._rng = random.Random(f"simulated cluster {seed}")
        self.network = SimulatedNetwork(self.loop, self._rng)
        self.brokers: dict[str, BrokerServer] = {}
        """The brokers that run, by machine."""
        self.nodes = [f"n{number}" for number in range(nodes)]
        """The machines of the brokers."""
        self._settings = dict(settings or {})
        self._buried: list[tuple[Process, asyncio.Task[Any]]] = []
        self._stack = contextlib.ExitStack()
        self._add_machine(NAME_SERVER, self._run_name_server)
        for node in self.nodes:
            self._add_machine(node, partial(self._run_broker, node))
        self._test = self._add_machine(TEST).begin_process()

    # The life of a simulation.

    def __enter__(self) -> Self:
        try:
            _collect_closed()
            gc.freeze()  # so that the end looks at nothing older
            self._stack.callback(gc.unfreeze)
            self._stack.callback(self.loop.close)
            self._stack.enter_context(simulated_sources(self.seed, self._test))
            self.start()
            self.run(self.ready())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes at once, as a kill does, and let real time apply again."""
        with self._stack:
            for machine in self.network.machines.values():
                self._end(machine, Machine.end_process)
            self._dispose(self._buried)
            with _silence():
                gc.collect()  # now, while what it releases is known to be dead
        _closed.add(self)

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the machine ``test`` until it is done, and return its result."""

        async def main() -> T:
            return await work

        task = self._test.context.run(self.loop.create_task, main())
        return self.loop.run_until_complete(task)

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run(asyncio.sleep(seconds))

    @property
    def now(self) -> float:
        """Seconds of virtual time since some moment before the start."""
        return self.loop.time()

    def start(self, *names: str) -> None:
        """Start machines that do not run; all of them if none is named.

        They come up in virtual time; :meth:`ready` waits for that.
        """
        for name in names or [name for name in self.network.machines if name != TEST]:
            machine = self._machine(name)
            if machine.process is not None or machine.program is None:
                continue
            process = machine.begin_process()
            task = process.main = process.context.run(self.loop.create_task, _main(machine.program))
            task.add_done_callback(partial(self._note_end, machine, process))
            self.network.open_again()

    async def ready(self, *, seconds: float = _READY_SECONDS) -> None:
        """Wait until every broker that runs is registered, and a group has a leader.

        Raises:
            TimeoutError: That took longer than ``seconds``.
        """
        async with asyncio.timeout(seconds):
            while not self._is_ready():  # noqa: ASYNC110 - in virtual time, which costs nothing
                await asyncio.sleep(_LOOK_SECONDS)

    def spawn(self, name: str, program: Program) -> None:
        """Run a program on a machine of its own; :meth:`kill` and :meth:`start` apply to it.

        Args:
            name: The name of the machine.
            program: Called without arguments; returns the coroutine to run.
        """
        if name not in self.network.machines:
            self._add_machine(name)
        self._machine(name).program = program
        self.start(name)

    # Clients.

    @property
    def name_servers(self) -> str:
        """The address of the name server, in the form that clients accept."""
        return f"{self._machine(NAME_SERVER).ip}:{_NAME_SERVER_PORT}"

    def producer(self, group: str = "test-producers", **settings: Any) -> Producer:
        """Return a producer of the machine that calls; use it with ``async with``."""
        return Producer(group, name_servers=self.name_servers, **settings)

    def consumer(self, group: str = "test-consumers", **settings: Any) -> PushConsumer:
        """Return a push consumer of the machine that calls."""
        return PushConsumer(group, name_servers=self.name_servers, **settings)

    # Faults.

    def kill(self, *names: str) -> None:
        """End the processes of machines at once; what they wrote is still in their page cache."""
        for name in names:
            self._end(self._machine(name), Machine.end_process)

    def power_cut(self, *names: str) -> None:
        """Take power from machines, all brokers if none is named.

        Only bytes and names that were synced are left for certain. Connections stay half-open.
        """
        for name in names or self.nodes:
            self._end(self._machine(name), Machine.lose_power)

    def partition(
        self, one: Iterable[str], other: Iterable[str] | None = None, *, one_way: bool = False
    ) -> None:
        """Cut the network between two sets of machines.

        Args:
            one: Machines.
            other: The machines that they cannot reach; all others if None.
            one_way: Whether the machines of ``other`` can still send to those of ``one``.
        """
        left = [self._machine(name).name for name in _names(one)]
        rest = [name for name in self.network.machines if name not in left]
        right = rest if other is None else [self._machine(name).name for name in _names(other)]
        for source in left:
            for target in right:
                self.network.blocked.add((source, target))
                if not one_way:
                    self.network.blocked.add((target, source))

    def heal(self) -> None:
        """End all partitions; bytes that waited for them arrive."""
        self.network.blocked.clear()
        self.network.open_again()

    def slow_disk(self, name: str, seconds: float) -> None:
        """Let work on a machine's disk take up to ``seconds`` more; 0 ends that."""
        self._machine(name).disk_seconds = seconds

    def jump_clock(self, name: str, seconds: float) -> None:
        """Set the wall clock of a machine ahead, or back if ``seconds`` is negative."""
        self._machine(name).clock_offset_ns += round(seconds * 1_000_000_000)

    def fail_syncs(self, name: str, *, failing: bool = True) -> None:
        """Let every sync of a machine's disk fail, or succeed again."""

        def fault(number: int, call: str, path: str) -> int | None:
            return errno.EIO if call == "fdatasync" else None

        self._machine(name).disk.fault = fault if failing else None

    def fill_disk(self, name: str, *, free_bytes: int = 0) -> None:
        """Leave only ``free_bytes`` of room on a machine's disk."""
        disk = self._machine(name).disk
        disk.capacity = disk.usage("/").used_bytes + free_bytes

    def flip_bit(self, name: str, path: str, bit: int) -> None:
        """Damage one bit of a file."""
        self._machine(name).disk.flip(path, bit)

    # Looking.

    @property
    def machines(self) -> list[str]:
        """The names of all machines."""
        return list(self.network.machines)

    def address_of(self, node: str) -> str:
        """Return the address of a broker for clients."""
        return f"{self._machine(node).ip}:{_BROKER_PORT}"

    def leader(self) -> str | None:
        """Return the machine of the broker that serves as leader; None if none does."""
        leaders = [node for node, broker in self.brokers.items() if broker.is_leader]
        return leaders[-1] if leaders else None

    def files(self, name: str) -> dict[str, bytes]:
        """Return the contents of all files of a machine by path."""
        disk = self._machine(name).disk
        return {path: disk.read_bytes(path) for path in disk.paths()}

    def fingerprint(self) -> str:
        """Return a SHA-256 of the names and bytes of all files of all machines."""
        found = hashlib.sha256()
        for name in sorted(self.network.machines):
            found.update(f"{name}:".encode())
            self._machine(name).disk.add_to(found)
        return found.hexdigest()

    # Inside.

    def _machine(self, name: str) -> Machine:
        try:
            return self.network.machines[name]
        except KeyError:
            known = ", ".join(self.network.machines)
            raise ValueError(f"there is no machine {name!r}; there are {known}") from None

    def _add_machine(self, name: str, program: Program | None = None) -> Machine:
        ip = f"10.0.0.{len(self.network.machines) + 1}"
        machine = Machine(name, ip, self.loop, self._rng, program)
        self.network.machines[name] = machine
        return machine

    def _is_ready(self) -> bool:
        running = [n for n in self.nodes if self._machine(n).process is not None]
        if any(node not in self.brokers or self.brokers[node].unregistered for node in running):
            return False
        return self.leader() is not None or not running

    def _end(self, machine: Machine, end: Callable[[Machine], Process | None]) -> None:
        process = end(machine)
        self.brokers.pop(machine.name, None)
        if process is None:
            return
        tasks = [(process, task) for task in self.loop.forget_process(process)]
        self.network.close_process(process)
        if machine.name in self.nodes or machine.name == NAME_SERVER:
            self._dispose(tasks)
        else:
            self._buried += tasks  # no code of a user's program runs after it was killed

    def _dispose(self, tasks: list[tuple[Process, asyncio.Task[Any]]]) -> None:
        """Release the coroutines of processes that have ended; whatever they still do is lost.

        Tasks that they begin meanwhile belong to the loop of the simulation, which forgets them; a
        loop that asyncio made for them would never run, and keep the process for good.
        """
        with _silence(), _as_running(self.loop):
            while tasks:
                process, task = tasks.pop()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                process.context.copy().run(_discard, task.get_coro())
                if not tasks:  # what ended may have begun others
                    rest = self.loop.forget_process(process)
                    tasks += [(process, each) for each in rest if _is_suspended(each)]

    def _note_end(self, machine: Machine, process: Process, task: asyncio.Task[Any]) -> None:
        if machine.process is not process:
            return
        self.brokers.pop(machine.name, None)
        machine.end_process()
        self.network.close_process(process)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the program of %s failed", machine.name, exc_info=error)

    async def _run_name_server(self) -> None:
        machine = self._machine(NAME_SERVER)
        config = NamesrvConfig(
            listen_port=_NAME_SERVER_PORT, bind_address=machine.ip, kv_config_path="/kvConfig.json"
        )
        await NameServer(config, files=machine.disk).run()

    async def _run_broker(self, node: str) -> None:
        machine, process = self._machine(node), current_process()
        assert process is not None
        values = {
            **_SETTINGS,
            "namesrvAddr": self.name_servers,
            "listenPort": str(_BROKER_PORT),
            "brokerIP1": machine.ip,
            "bindAddress": machine.ip,
            **self._group_values(node),
            **self._settings,
        }
        broker = BrokerServer(
            values,
            clock=BrokerClock(lambda: process.wall_ns, lambda: process.monotonic_ns),
            files=machine.disk,
        )
        await broker.start()
        self.brokers[node] = broker
        reason = await broker.wait_failed()
        logger.error("broker %s cannot go on: %s", node, reason)
        await broker.stop()

    def _group_values(self, node: str) -> dict[str, str]:
        if len(self.nodes) == 1:
            return {}
        peers = [f"{n}-{self._machine(n).ip}:{_GROUP_PORT}" for n in self.nodes]
        return {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "broker-a",
            "dLegerSelfId": node,
            "dLegerPeers": ";".join(peers),
        }


async def _main(program: Program) -> None:
    await program()


def _discard(coroutine: Any) -> None:
    """Have a coroutine end, however often it waits for something on the way."""
    with contextlib.suppress(BaseException):
        for _ in range(_WAITS_MAX):
            coroutine.throw(_KilledError())


_closed: Final[weakref.WeakSet[SimulatedCluster]] = weakref.WeakSet()
"""Closed clusters that are still in memory."""


def _collect_closed() -> None:
    """Free clusters that were closed and are not used any more.

    A user's objects may form a cycle with their cluster. Python looks for such cycles when many
    objects have been made, but a cluster is few objects with hundreds of megabytes of files.
    """
    if _closed:
        gc.collect()
        _closed.clear()  # whatever is left is still used


def _is_suspended(task: asyncio.Task[Any]) -> bool:
    return inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CLOSED  # type: ignore[arg-type]


@contextlib.contextmanager
def _as_running(loop: SimulatedLoop) -> Iterator[None]:
    """Let a loop be the one that runs."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let the remains of a killed process neither log nor warn."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that nobody awaits
            yield
    finally:
        logging.disable(before)


def _names(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
