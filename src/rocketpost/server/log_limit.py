"""A limit on repeated log lines, so that no peer can fill the disk with them.

A line repeats an earlier one if both have the same logger, level and template and name the same
peer, even if their other values differ. In each interval the first ``LINES_A_PEER_MAX`` of them are
logged, and at most ``LINES_MAX`` for all peers together. The others are counted: a line at the end
of the interval gives their number and shows the last one. So no kind of line is missing altogether.
Errors, each of which may name another damaged place, have ten times the limit.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

INTERVAL_SECONDS: Final = 10.0
LINES_A_PEER_MAX: Final = 100
LINES_MAX: Final = 500
ERROR_FACTOR: Final = 10
_KINDS_MAX: Final = 4096
_PLAIN_LENGTH: Final = 40
_LEFT_OUT: Final = "lines left out: count=%s seconds=%.0f last=%s"
_VALUE: Final = re.compile(r"(\w+=)?%(?!%)[-#0-9 +.]*[a-zA-Z]")


class _Kind(NamedTuple):
    """Lines that count as repetitions of each other."""

    logger: str
    level: int
    template: str
    peer: str | None


_OTHERS: Final = _Kind("rocketpost", 0, "", None)


class _Count:
    """Lines of one kind within one interval."""

    __slots__ = ("last", "left_out", "lines")

    def __init__(self) -> None:
        self.lines = 0
        self.left_out = 0
        self.last: logging.LogRecord | None = None


class LimitRepetition(logging.Filter):
    """Lets the first lines of each kind pass, and counts the others. Thread-safe.

    Args:
        handler: Gets the lines that give the number of omitted lines.
        clock: Returns seconds, which never decrease.
    """

    def __init__(
        self, handler: logging.Handler, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._counts: dict[_Kind, _Count] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may be logged."""
        if record.msg is _LEFT_OUT:
            return True
        if self._clock() - self._began >= INTERVAL_SECONDS:
            self.flush()
        template = str(record.msg)
        if not record.args:
            template = template[:_PLAIN_LENGTH]  # other libraries put values into the text
        kind = _Kind(record.name, record.levelno, template, None)
        factor = ERROR_FACTOR if record.levelno >= logging.ERROR else 1
        with self._lock:
            of_all = self._count(kind)
            of_peer = self._count(kind._replace(peer=_peer(template, record.args)))
            if of_peer.lines < LINES_A_PEER_MAX * factor and of_all.lines < LINES_MAX * factor:
                of_peer.lines += 1
                if of_all is not of_peer:
                    of_all.lines += 1
                return True
            of_all.left_out += 1
            of_all.last = record
            return False

    def flush(self) -> None:
        """End the interval: log the number of omitted lines, and begin a new one."""
        with self._lock:
            counts, self._counts = self._counts, {}
            seconds, self._began = self._clock() - self._began, self._clock()
        for kind, count in counts.items():
            if count.last is not None:
                args = (count.left_out, seconds, count.last.getMessage())
                told = logging.LogRecord(
                    kind.logger, kind.level, count.last.pathname, 0, _LEFT_OUT, args, None
                )
                self._handler.handle(told)

    def _count(self, kind: _Kind) -> _Count:
        count = self._counts.get(kind)
        if count is None:
            if len(self._counts) >= _KINDS_MAX:  # too many to count each
                kind = kind._replace(peer=None)
                kind = kind if kind in self._counts else _OTHERS._replace(level=kind.level)
            count = self._counts.setdefault(kind, _Count())
        return count


def _peer(template: str, args: object) -> str | None:
    """Return the host that a line names, None if it names none."""
    at = _peer_index(template)
    if at is None or not isinstance(args, tuple) or at >= len(args):
        return None
    return str(args[at]).partition(" ")[0].rpartition(":")[0]


@functools.lru_cache(maxsize=1024)
def _peer_index(template: str) -> int | None:
    """Return the index of the peer among the values of a template, or None."""
    names = [match[1] for match in _VALUE.finditer(template)]
    return next((at for at, name in enumerate(names) if name in ("peer=", "by=")), None)
