"""The store's budget of file descriptors, and its spares for when the process runs out of them.

Descriptors run short when many queues and many connections are busy under a low ``ulimit -n``. A
shortage is temporary and no fault of the disk, so it must not be treated as a failed write, after
which only a restart helps. So caches of descriptors are sized by the limit, the server leaves the
store its share when it accepts connections, and a few spares are released when an open fails.
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
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_shortage(error: OSError) -> bool:
    """Tell whether a call failed for lack of descriptors, before it did anything."""
    return error.errno in _SHORTAGE


def is_transient(error: OSError) -> bool:
    """Tell whether a call may succeed later without a repair."""
    return error.errno in _TRANSIENT


def may_pass(error: OSError) -> bool:
    """Tell whether a call failed for lack of disk space, or may succeed later without a repair."""
    return error.errno in _NO_ROOM or is_transient(error)


def cache_count_max(most: int) -> int:
    """Return how many descriptors one cache may keep: ``most``, or its share of a low limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit < 0 else min(most, max(_CACHE_COUNT_MIN, limit // _CACHE_SHARE))


class Spares:
    """Descriptors kept in reserve for a shortage. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self.missing = 0
        """Number of spares released and not yet regained."""

    def hold(self, count: int = SPARE_COUNT) -> None:
        """Keep ``count`` spares from now on."""
        with self._lock:
            self.missing = count - len(self._held)
        self.refill()

    def release_all(self) -> None:
        """Release all of them."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())
            self.missing = 0

    def release_one(self) -> bool:
        """Close one, so that another file can be opened; False if there is none."""
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            self.missing += 1
        logger.warning(
            "file descriptors are running out: spares_left=%s limit=%s; raise the limit "
            "(ulimit -n)",
            len(self._held),
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        return True

    def refill(self) -> None:
        """Regain the spares that were released, as far as possible now."""
        with self._lock:
            while self.missing:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    return  # tried again when the next file is closed
                self.missing -= 1


SPARES: Final = Spares()
"""The spares of this process; a server holds some, other programs none."""


def with_spares(call: Callable[[], T]) -> T:
    """Make a call that opens a file, releasing spares if need be; return its result."""
    while True:
        try:
            return call()
        except OSError as error:
            if not is_shortage(error) or not SPARES.release_one():
                raise
