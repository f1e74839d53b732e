"""The common part of server processes: log, handle signals, run a loop, stop cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rocketpost.errors import RocketpostError
from rocketpost.server.log_limit import INTERVAL_SECONDS, LimitRepetition
from rocketpost.store.descriptors import SPARES

logger = logging.getLogger(__name__)

_EXIT_CONFIG = 2
_EXIT_FAILED = 1
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_MESSAGE_LENGTH_MAX = 4096
_TRACEBACK_LENGTH_MAX = 16_384


class Server(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None:
        """Return when requests are served."""
        ...

    async def stop(self) -> None:
        """Return when everything is closed and saved."""
        ...

    async def wait_failed(self) -> str:
        """Wait until the server cannot go on, and return the reason."""
        ...


S = TypeVar("S", bound=Server)


def run(
    make: Callable[[], S],
    *,
    ready: Callable[[S], str],
    label: str = "",
    parent_fd: int | None = None,
) -> int:
    """Run a server until a signal or a failure; return the exit code.

    Args:
        make: Makes the server.
        ready: Returns the line to print when it serves requests.
        label: The name at the beginning of each line of the log; none if empty.
        parent_fd: A pipe from the process that started this one. The server also stops when it
            closes.
    """
    prefix = f"[{label}] " if label else ""
    if not __debug__:
        print("refusing to run under python -O: the checks would be gone", file=sys.stderr)
        return _EXIT_CONFIG
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(_LOG_FORMAT, prefix=prefix))
    limit = LimitRepetition(handler)
    handler.addFilter(limit)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _open_many_files()
    SPARES.hold()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            flushing = runner.get_loop().create_task(_flush_often(limit))
            try:
                return runner.run(_run(make, ready, parent_fd))
            finally:
                flushing.cancel()
                limit.flush()
    except RocketpostError as error:
        print(f"{prefix}error: {error}", file=sys.stderr)
        return _EXIT_CONFIG


class OneLineFormatter(logging.Formatter):
    """Keeps each record in one line, so that no name or remark of a peer can fake another.

    Control characters are escaped, long messages cut, and the lines of a traceback indented.

    Args:
        text: The format of a record.
        prefix: The beginning of every line.
    """

    def __init__(self, text: str, *, prefix: str = "") -> None:
        super().__init__(text)
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return the record, with its traceback in lines of their own."""
        return self._prefix + super().format(record).replace("\n", "\n" + self._prefix)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message in one line."""
        text = record.message
        if len(text) > _MESSAGE_LENGTH_MAX:
            text = f"{text[:_MESSAGE_LENGTH_MAX]}... ({len(text)} characters)"
        record.message = text if text.isprintable() else _escape(text)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented."""
        lines = super().formatException(ei)[-_TRACEBACK_LENGTH_MAX:].splitlines()
        return "\n".join("    " + _escape(line) for line in lines)


def _escape(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


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
    make: Callable[[], S], ready: Callable[[S], str], parent_fd: int | None = None
) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if parent_fd is not None:
        # The parent writes nothing more: the pipe becomes readable when it closes.
        loop.add_reader(parent_fd, _on_parent_gone, parent_fd, stopping)
    server = make()
    await server.start()
    reason = None
    try:
        # After a signal during the start, stop without printing the ready line.
        if not stopping.is_set():
            reason = await _serve(server, ready, stopping)
    finally:
        await server.stop()
    if reason is not None:
        logger.error("server stopped: reason=%s", reason)
        return _EXIT_FAILED
    logger.info("stopped: clean=true")
    return 0


def _on_parent_gone(parent_fd: int, stopping: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(parent_fd)
    stopping.set()


async def _serve(server: S, ready: Callable[[S], str], stopping: asyncio.Event) -> str | None:
    """Return at a signal, or with the reason why the server cannot go on."""
    # The objects that exist now live as long as the process: the collector need not visit them
    # again, and short-lived requests should not make it run every few hundred objects.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    print(ready(server), flush=True)
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
