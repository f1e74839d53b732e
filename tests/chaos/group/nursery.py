"""Brokers that start in a moment: forks of one process that has imported the server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROGRAM: Final = Path(__file__).with_name("nursery_program.py")
_END_SECONDS: Final = 30.0


@dataclass(slots=True)
class Child:
    """A process that was started."""

    pid: int
    ended: asyncio.Future[int] = field(repr=False)
    """Gets the exit code, negative after a signal."""

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal that ends the process, and return its exit code."""
        self.send(number)
        async with asyncio.timeout(_END_SECONDS):
            return await asyncio.shield(self.ended)


class Nursery:
    """Starts servers. Owned by the loop; made by :func:`nursery`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        self._orders = process.stdin
        self._numbers = itertools.count(1)
        self._born: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}

    async def start(
        self,
        arguments: Sequence[str],
        *,
        namespace: str,
        log: Path,
        bug: str = "",
        mirror: Sequence[str] = (),
    ) -> Child:
        """Start a server in a namespace; returns when its process exists."""
        number = next(self._numbers)
        born = self._born[number] = asyncio.get_running_loop().create_future()
        order = {
            "number": number,
            "namespace": namespace,
            "log": str(log),
            "arguments": list(arguments),
            "bug": bug,
            "mirror": list(mirror),
        }
        self._orders.write(json.dumps(order).encode() + b"\n")
        await self._orders.drain()
        return await born

    async def listen(self, answers: asyncio.StreamReader) -> None:
        """Take the answers of the program until it ends."""
        while line := await answers.readline():
            answer = json.loads(line)
            if "code" in answer:
                self._children.pop(answer["pid"]).ended.set_result(answer["code"])
                continue
            ended = asyncio.get_running_loop().create_future()
            child = self._children[answer["pid"]] = Child(answer["pid"], ended)
            self._born.pop(answer["number"]).set_result(child)


@contextlib.asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """Run a nursery; every server dies with it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_PROGRAM), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found = Nursery(process)
    listening = asyncio.create_task(found.listen(process.stdout))
    try:
        yield found
    finally:
        process.stdin.close()
        await process.wait()
        await listening
