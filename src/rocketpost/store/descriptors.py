"""File descriptors: how many the store keeps, and what happens when the process runs out of them.

Descriptors run short when many queues and many connections are busy under a low ``ulimit -n``. That
passes, and says nothing about the disk: it must not be taken for a failed write, after which only a
restart would help. So caches of descriptors are sized by the limit, the server leaves the store its
share when it accepts connections, and a few spare descriptors are given up when an open fails.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from collections.abc import Callable
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

SPARE_COUNT: Final = 16
_CACHE_SHARE: Final = 8
_CACHE_COUNT_MIN: Final = 8
_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE})
_TRANSIENT: Final = _SHORTAGE | {errno.ENOMEM, errno.EAGAIN, errno.EINTR}


def is_shortage(error: OSError) -> bool:
    """Tell whether a call failed for want of descriptors: nothing was tried at all."""
    return error.errno in _SHORTAGE


def is_transient(error: OSError) -> bool:
    """Tell whether a call may succeed later although nothing was repaired."""
    return error.errno in _TRANSIENT


def cache_count_max(most: int) -> int:
    """Return how many descriptors one cache may keep: ``most``, or its share of a low limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit < 0 else min(most, max(_CACHE_COUNT_MIN, limit // _CACHE_SHARE))


class Spares:
    """Descriptors kept for the moment when there are no others. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self.missing = 0
        """Number of spares given up and not regained."""

    def hold(self, count: int = SPARE_COUNT) -> None:
        """Keep that many from now on."""
        with self._lock:
            self.missing = count - len(self._held)
        self.refill()

    def let_go(self) -> None:
        """Release all of them."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())
            self.missing = 0

    def give_up_one(self) -> bool:
        """Close one, so that another file can be opened; False if there is none."""
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            self.missing += 1
        logger.warning(
            "file descriptors run short: spares_left=%s limit=%s; raise the limit (ulimit -n)",
            len(self._held),
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        return True

    def refill(self) -> None:
        """Get back those that were given up, as far as that is possible now."""
        with self._lock:
            while self.missing:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    return  # when the next file is closed
                self.missing -= 1


SPARES: Final = Spares()
"""Those of this process; a server holds some, other programs none."""


def with_spares(call: Callable[[], T]) -> T:
    """Make a call that opens a file, giving up spare descriptors if need be; return its result."""
    while True:
        try:
            return call()
        except OSError as error:
            if not is_shortage(error) or not SPARES.give_up_one():
                raise
