"""The common part of server processes: log, handle signals, run a loop, stop cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from rocketpost.errors import RocketpostError
from rocketpost.server.announced import check_announced
from rocketpost.server.log_limit import INTERVAL_SECONDS, LimitRepetition
from rocketpost.server.logs.output import open_log_blocking, show_warnings
from rocketpost.server.service_manager import ServiceManager
from rocketpost.server.settings.logs import LogConfig
from rocketpost.store.descriptors import SPARES

logger = logging.getLogger(__name__)

_EXIT_CONFIG = 2
_EXIT_FAILED = 1
_DEFAULT_LOG: Final = LogConfig()


class Server(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None:
        """Return when requests are served."""
        ...

    async def stop(self) -> None:
        """Return when everything is closed and saved."""
        ...

    async def wait_failed(self) -> str:
        """Wait until the server cannot continue, and return the reason."""
        ...


S = TypeVar("S", bound=Server)


def run(
    make: Callable[[], S],
    *,
    ready: Callable[[S], str],
    label: str = "",
    parent_fd: int | None = None,
    log: LogConfig = _DEFAULT_LOG,
    announced: Callable[[S], str] | None = None,
) -> int:
    """Run a server until a signal or a failure; return the exit code.

    Args:
        make: Makes the server.
        ready: Returns the line to print when it serves requests.
        label: The name at the beginning of each line of the log; none if empty.
        parent_fd: A pipe from the process that started this one. The server also stops when it
            closes.
        log: The settings of the log.
        announced: Returns the address that clients get, to which the server connects once as a
            check.
    """
    prefix = f"[{label}] " if label else ""
    if not __debug__:
        print("refusing to run under python -O: the checks would be gone", file=sys.stderr)
        return _EXIT_CONFIG
    manager = ServiceManager()
    try:
        limit = open_log_blocking(log, label=label)
        shown = show_warnings(log, label=label)
        _open_many_files()
        SPARES.hold()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            flushing = runner.get_loop().create_task(_flush_often(limit))
            try:
                return runner.run(_run(make, ready, parent_fd, manager, shown, announced))
            finally:
                flushing.cancel()
                limit.flush()
    except RocketpostError as error:
        print(f"{prefix}error: {error}", file=sys.stderr)
        return _EXIT_CONFIG


async def _flush_often(limit: LimitRepetition) -> None:
    """Log the number of lines left out, even if nothing more is logged."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        limit.flush()


def _open_many_files() -> None:
    """Let the process open as many files as it is allowed to: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError) as error:
        logger.info("limit of open files not raised: reason=%s", error)


async def _run(
    make: Callable[[], S],
    ready: Callable[[S], str],
    parent_fd: int | None = None,
    manager: ServiceManager | None = None,
    hide_warnings: Callable[[], None] = lambda: None,
    announced: Callable[[S], str] | None = None,
) -> int:
    manager = manager or ServiceManager({})
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if parent_fd is not None:
        # The parent writes nothing more: the pipe becomes readable when it closes.
        loop.add_reader(parent_fd, _on_parent_gone, parent_fd, stopping)
    server = make()
    tasks: list[asyncio.Task[Any]] = [loop.create_task(manager.keep_alive())]
    try:
        await server.start()
        reason = None
        try:
            # After a signal during the start, stop without printing the ready line.
            if not stopping.is_set():
                text = ready(server)
                hide_warnings()
                manager.ready(text)
                if announced is not None:
                    tasks.append(loop.create_task(check_announced(announced(server))))
                reason = await _serve(server, text, stopping)
        finally:
            manager.stopping()
            await server.stop()
    finally:
        for task in tasks:
            task.cancel()
    if reason is not None:
        logger.error("server stopped: reason=%s", reason)
        return _EXIT_FAILED
    logger.info("stopped: clean=%s", "true")
    return 0


def _on_parent_gone(parent_fd: int, stopping: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(parent_fd)
    stopping.set()


async def _serve(server: S, ready: str, stopping: asyncio.Event) -> str | None:
    """Return at a signal, or with the reason why the server cannot continue."""
    # The objects that exist now live as long as the process: the collector need not visit them
    # again, and short-lived requests should not make it run every few hundred objects.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    print(ready, flush=True)
    signalled = asyncio.ensure_future(stopping.wait())
    failed = asyncio.ensure_future(server.wait_failed())
    try:
        await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
        return None if signalled.done() else failed.result()
    finally:
        for task in (signalled, failed):
            task.cancel()
        await asyncio.gather(signalled, failed, return_exceptions=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
