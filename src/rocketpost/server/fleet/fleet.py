"""Several brokers as one server: started together, kept running, stopped together.

Broker 0 starts first, alone. It holds the lock of the common directory, so that a second command
over the same directory ends before it starts any other broker. If a broker cannot start at first,
the command ends. From then on, each broker that ends is named in the log and started again, for as
long as the command runs: the others continue to serve meanwhile. A message stays in the broker that
stored it, whatever happens to the others, since brokers share nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from rocketpost.errors import RocketpostError
from rocketpost.server.fleet.broker_process import BrokerEnded, BrokerProcess, describe_end
from rocketpost.server.fleet.plan import BrokerPlan

logger = logging.getLogger(__name__)

RESTART_SECONDS_MIN: Final = 1.0
RESTART_SECONDS_MAX: Final = 30.0
"""The wait before a restart doubles from the former to the latter while a broker keeps ending."""
STABLE_SECONDS: Final = 60.0
"""A broker that served for so long counts as well: its next restart comes soon."""
_PATIENCE_SECONDS: Final = 10.0


class Fleet:
    """The brokers of one command. Belongs to the event loop.

    Args:
        brokers: Their processes, not started yet, that of broker 0 first.
    """

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self.brokers = brokers
        self._stopping = asyncio.Event()
        self._keeping: list[asyncio.Task[str]] = []

    async def start(self) -> None:
        """Return when all brokers serve requests.

        Raises:
            BrokerEnded: One cannot start; all others are stopped.
        """
        first, *others = self.brokers
        try:
            await first.launch()
            await first.wait_ready()
            for broker in others:
                await broker.launch()
            for broker in others:
                await broker.wait_ready()
        except BaseException:
            await self._end_all()
            raise
        self._keeping = [
            asyncio.create_task(self._keep(broker), name=broker.name) for broker in self.brokers
        ]

    async def stop(self) -> None:
        """Return when all brokers have saved everything and ended.

        Raises:
            RocketpostError: A broker was not running, or did not end cleanly.
        """
        self._stopping.set()
        for broker in self.brokers:
            broker.ask_to_stop()
        waiting = set(self._keeping)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=_PATIENCE_SECONDS)
            for broker in self.brokers if waiting else ():
                if broker.is_running:
                    logger.info("broker is stopping: name=%s pid=%s", broker.name, broker.pid)
        problems = [problem for task in self._keeping if (problem := task.result())]
        if problems:
            raise RocketpostError("; ".join(problems))

    async def wait_failed(self) -> str:
        """Wait until brokers can no longer be kept running, and return the reason."""
        done, _ = await asyncio.wait(self._keeping, return_when=asyncio.FIRST_COMPLETED)
        return "; ".join(f"{task.get_name()} is not watched: {task.exception()!r}" for task in done)

    async def _end_all(self) -> None:
        running = [broker for broker in self.brokers if broker.is_running]
        for broker in running:
            broker.ask_to_stop()
        for broker in running:
            await broker.wait_ended()

    async def _keep(self, broker: BrokerProcess) -> str:
        """Start a broker again whenever it ends; return the problem at the end, if any."""
        loop = asyncio.get_running_loop()
        wait = RESTART_SECONDS_MIN
        while True:
            since = loop.time()
            code = await broker.wait_ended()
            how = describe_end(code)
            if self._stopping.is_set():
                return f"{broker.name} did not stop cleanly: {how}" if code else ""
            logger.error("broker ended: name=%s pid=%s how=%s", broker.name, broker.pid, how)
            if loop.time() - since >= STABLE_SECONDS:
                wait = RESTART_SECONDS_MIN
            problem = f"{broker.name} was not running: {how}" if code else ""
            while not await self._is_time_to_stop(wait):
                wait = min(2 * wait, RESTART_SECONDS_MAX)
                try:
                    await self._restart(broker)
                    break
                except BrokerEnded as error:
                    problem = "" if error.is_clean else str(error)
                    logger.error("broker not restarted: name=%s reason=%s", broker.name, error)
            else:
                return problem

    async def _is_time_to_stop(self, seconds: float) -> bool:
        """Wait some seconds, or until all brokers are to stop; tell whether they are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _restart(self, broker: BrokerProcess) -> None:
        await broker.launch()
        if self._stopping.is_set():
            broker.ask_to_stop()
        await broker.wait_ready()
        logger.warning("broker restarted: name=%s pid=%s", broker.name, broker.pid)


def make_fleet(plans: Sequence[BrokerPlan], *, accept_missing: bool = False) -> Fleet:
    """Return the brokers of a command.

    Args:
        plans: Their names and settings, broker 0 first.
        accept_missing: Whether to start although files of a commit log are missing.
    """
    sharers = len(plans)
    return Fleet(
        [BrokerProcess(plan, sharers=sharers, accept_missing=accept_missing) for plan in plans]
    )


def fleet_ready(fleet: Fleet) -> str:
    """Return the ready lines of all brokers, and a line with their processes."""
    lines = [broker.ready_line for broker in fleet.brokers]
    processes = ", ".join(f"{broker.name} pid {broker.pid}" for broker in fleet.brokers)
    return "\n".join([*lines, f"{len(lines)} brokers run: {processes}"])
