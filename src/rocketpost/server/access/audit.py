"""The audit log: one JSON object per line for each failed login, denial and change.

    {"at":"2026-11-18T03:04:05.678Z","event":"userChanged","user":"root","source":"10.0.0.9:5123",
     "target":"norm","change":"password","result":"ok","counter":7}

A change is on disk before it is answered. Failures and denials are written in the background, with
a limit so that strangers cannot fill the log (``audit_limit``). If the disk is too slow, some are
dropped, and a line says how many. No line has a secret. The file is rotated by size:
``audit.log.1`` is the newest of the old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from rocketpost.errors import StoreError
from rocketpost.server.access.audit_limit import INTERVAL_SECONDS, AuditLimit

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 5
_WAITING_MAX: Final = 10_000
_TEXT_CHARS_MAX: Final = 1024
_READ_BYTES: Final = 1 << 16


class Audit(Protocol):
    """Records what happens to access control."""

    def note(self, event: str, **members: Any) -> None:
        """Record an event soon."""
        ...

    async def record(self, event: str, **members: Any) -> None:
        """Record a change; return when it is on disk.

        Raises:
            StoreError: It cannot be written.
        """
        ...

    async def newest(self, count: int, *, event: str = "", user: str = "") -> list[bytes]:
        """Return the newest lines, oldest first.

        Args:
            count: Most lines.
            event: Only lines of this event; all if empty.
            user: Only lines of this user; all if empty.

        Raises:
            StoreError: The log cannot be read.
        """
        ...


class NoAudit:
    """Records nothing, because access control is off."""

    def note(self, event: str, **members: Any) -> None:
        """Ignore an event."""

    async def record(self, event: str, **members: Any) -> None:
        """Ignore a change."""

    async def newest(self, count: int, *, event: str = "", user: str = "") -> list[bytes]:
        """Return no line."""
        return []


class LoggedAudit(NoAudit):
    """Writes failures and denials to the ordinary log, for a process without files of its own."""

    def note(self, event: str, **members: Any) -> None:
        """Log an event."""
        logger.warning(
            "access refused: peer=%s event=%s user=%s code=%s reason=%s",
            members.get("source", ""),
            event,
            members.get("user", ""),
            members.get("code", ""),
            members.get("reason", ""),
        )


class AuditLog:
    """The audit log of a server. Owned by the loop; one thread writes.

    Args:
        path: The file; its directory exists.
        now: Returns the time of day.
        seconds: Returns seconds on a clock that never goes back.
        bytes_max: Size at which the file is rotated.
    """

    def __init__(
        self,
        path: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._path = path
        self._now = now
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._limit = AuditLimit(seconds())
        self._ending: asyncio.TimerHandle | None = None
        self._waiting: list[bytes] = []
        self._dropped = 0
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._fd = -1

    def note(self, event: str, **members: Any) -> None:
        """Record an event soon, unless there are too many of its kind."""
        if self._limit.is_over(self._seconds()):
            self._end_interval()
        if self._limit.admit(event, members):
            self._add(self._line(event, members))
        elif self._ending is None:
            loop = asyncio.get_running_loop()
            self._ending = loop.call_later(INTERVAL_SECONDS, self._end_interval)

    async def record(self, event: str, **members: Any) -> None:
        """Record a change; return when it is on disk.

        Raises:
            StoreError: It cannot be written.
        """
        lines = [*self._take(), self._line(event, members)]
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._write_blocking, lines, True)
        except OSError as error:
            raise StoreError(f"the audit log {self._path} cannot be written: {error}") from error

    async def newest(self, count: int, *, event: str = "", user: str = "") -> list[bytes]:
        """Return the newest lines, oldest first.

        Raises:
            StoreError: The log cannot be read.
        """
        wanted = {key: text for key, text in (("event", event), ("user", user)) if text}
        lines, loop = self._take(), asyncio.get_running_loop()
        try:
            if lines:
                await loop.run_in_executor(self._thread, self._write_blocking, lines, False)
            return await loop.run_in_executor(
                self._thread, _newest_blocking, self._path, count, wanted
            )
        except OSError as error:
            raise StoreError(f"the audit log {self._path} cannot be read: {error}") from error

    async def close(self) -> None:
        """Write the rest and close the file."""
        self._end_interval()
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        await asyncio.to_thread(self._close_blocking)

    def _end_interval(self) -> None:
        """Write how many lines are missing, and begin to count again."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        for event, members in self._limit.take_left_out(self._seconds()):
            self._add(self._line(event, members))

    def _add(self, line: bytes) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            self._dropped += 1
            return
        self._waiting.append(line)
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write_soon())

    async def _write_soon(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while lines := self._take():
                await loop.run_in_executor(self._thread, self._write_blocking, lines, False)
        except OSError as error:
            logger.error("audit log not written: path=%s reason=%s", self._path, error)
        finally:
            self._writing = None

    def _take(self) -> list[bytes]:
        lines, self._waiting = self._waiting, []
        if self._dropped:
            lines.append(self._line("dropped", {"count": self._dropped}))
            self._dropped = 0
        return lines

    def _line(self, event: str, members: dict[str, Any]) -> bytes:
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        cut = {
            key: value[:_TEXT_CHARS_MAX] if isinstance(value, str) else value
            for key, value in members.items()
            if value is not None
        }
        return msgspec.json.encode({"at": at, "event": event, **cut}) + b"\n"

    # In the thread.

    def _write_blocking(self, lines: list[bytes], is_synced: bool) -> None:
        data = b"".join(lines)
        if self._fd < 0:
            self._fd = _open_blocking(self._path)
        if os.fstat(self._fd).st_size + len(data) > self._bytes_max:
            self._rotate_blocking()
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        if is_synced:
            os.fdatasync(self._fd)

    def _rotate_blocking(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        for number in range(FILES_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        self._fd = _open_blocking(self._path)

    def _close_blocking(self) -> None:
        self._thread.shutdown()
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


def _open_blocking(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _newest_blocking(path: str, count: int, wanted: dict[str, str]) -> list[bytes]:
    """Return the newest lines that have certain values, oldest first."""
    found: list[bytes] = []
    for name in (path, *(f"{path}.{number}" for number in range(1, FILES_KEPT + 1))):
        with contextlib.suppress(FileNotFoundError):
            for line in _lines_from_end_blocking(name):
                if not _has(line, wanted):
                    continue
                found.append(line)
                if len(found) == count:
                    return found[::-1]
    return found[::-1]


def _lines_from_end_blocking(path: str) -> Iterator[bytes]:
    """Return the complete lines of a file, the last one first."""
    with open(path, "rb") as file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at:
            size = min(at, _READ_BYTES)
            at = file.seek(at - size)
            first, *lines = (file.read(size) + rest).split(b"\n")
            rest = first
            yield from (line for line in reversed(lines) if line)
        if rest:
            yield rest


def _has(line: bytes, wanted: dict[str, str]) -> bool:
    try:
        values = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return False  # half a line, from a power cut
    return all(values.get(key) == text for key, text in wanted.items())
