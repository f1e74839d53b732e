"""The process of one broker, as its parent sees it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from rocketpost.errors import RocketpostError
from rocketpost.server.fleet.child import PROGRAM, ChildOrder, encode_order
from rocketpost.server.fleet.plan import BrokerPlan

logger = logging.getLogger(__name__)


class BrokerEnded(RocketpostError):  # noqa: N818 - named after what happened
    """The process of a broker ended before the broker was ready, or could not be made.

    Attributes:
        is_clean: Whether it ended because it was asked to.
    """

    def __init__(self, text: str, *, is_clean: bool = False) -> None:
        super().__init__(text)
        self.is_clean = is_clean


class BrokerProcess:
    """A broker in a process of its own, which can be started again. Belongs to the event loop.

    Args:
        plan: Its name and settings.
        sharers: Number of brokers of the command.
        accept_missing: Whether its first start may find files of the commit log missing.
    """

    def __init__(self, plan: BrokerPlan, *, sharers: int, accept_missing: bool) -> None:
        self.name = plan.name
        self._plan = plan
        self._sharers = sharers
        self._accept_missing = accept_missing
        self._process: asyncio.subprocess.Process | None = None
        self.ready_line = ""
        """The line that the broker printed when it was ready."""

    @property
    def pid(self) -> int:
        """The id of the newest process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.returncode is None

    async def launch(self) -> None:
        """Start the process without waiting until the broker is ready.

        Raises:
            BrokerEnded: The system cannot make a process.
        """
        assert not self.is_running
        try:
            # In a session of its own, it does not get the terminal's Ctrl-C: the parent stops it.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *PROGRAM,
                self.name,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise BrokerEnded(f"the broker {self.name} got no process: {error}") from error
        order = ChildOrder(
            name=self.name,
            values=self._plan.values,
            sharers=self._sharers,
            accept_missing=self._accept_missing,
        )
        self._accept_missing = False  # a later start must not accept another loss silently
        assert self._process.stdin is not None
        self._process.stdin.write(encode_order(order))

    async def wait_ready(self) -> None:
        """Return when the broker serves requests.

        Raises:
            BrokerEnded: The process ended before the broker was ready.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            text = f"the broker {self.name} did not start: {describe_end(code)}"
            raise BrokerEnded(text, is_clean=code == 0)
        self.ready_line = line.decode().rstrip("\n")

    def ask_to_stop(self) -> None:
        """Ask the broker to save everything and end, without waiting."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def wait_ended(self) -> int:
        """Wait until the process has ended; return its exit code, -N after signal N."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            logger.info("broker printed: name=%s line=%s", self.name, line.decode().rstrip("\n"))
        return await self._process.wait()


def describe_end(code: int) -> str:
    """Return the meaning of an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
