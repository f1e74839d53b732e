"""What every server process does: log, listen to signals, run a loop, stop cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from rocketpost.errors import RocketpostError

logger = logging.getLogger(__name__)

_EXIT_CONFIG = 2
_EXIT_FAILED = 1


class Server(Protocol):
    """Something that starts, says what it is, and stops."""

    async def start(self) -> None:
        """Return when requests are served."""
        ...  # pragma: no cover

    async def stop(self) -> None:
        """Return when everything is closed and saved."""
        ...  # pragma: no cover

    async def failed(self) -> str:
        """Return, if ever, why the server cannot go on."""
        ...  # pragma: no cover


S = TypeVar("S", bound=Server)


def run(make: Callable[[], S], *, ready: Callable[[S], str]) -> int:
    """Run a server until a signal or a failure; return the exit code."""
    if not __debug__:
        print("refusing to run under python -O: the checks would be gone", file=sys.stderr)
        return _EXIT_CONFIG
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(make, ready))
    except RocketpostError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_CONFIG


async def _run(make: Callable[[], S], ready: Callable[[S], str]) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = make()
    await server.start()
    # What exists now lives as long as the process: the collector need not look at it again, and
    # short-lived requests should not make it run every few hundred objects.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    print(ready(server), flush=True)
    signalled = asyncio.ensure_future(stopping.wait())
    failed = asyncio.ensure_future(server.failed())
    try:
        await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await server.stop()
    code = 0
    if failed.done() and not signalled.done():
        logger.error("server stopped: reason=%s", failed.result())
        code = _EXIT_FAILED
    for task in (signalled, failed):
        task.cancel()
    await asyncio.gather(signalled, failed, return_exceptions=True)
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
