"""The addresses at which a slave finds its master."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class MasterAddress:
    """The addresses of a slave's master, as far as they are known. Owned by the loop.

    Name servers tell both in their answers to registrations. A master may tell its slaves, too
    (EXCHANGE_BROKER_HA_INFO). Addresses stay even if no server confirms them: the master may come
    back.

    Args:
        fixed_ha: ``haMasterAddress`` of the slave's file; if it is not empty, it is used always.
    """

    def __init__(self, *, fixed_ha: str = "") -> None:
        self._fixed_ha = fixed_ha
        self.remoting = ""
        """Where it serves requests; empty if unknown."""
        self.ha = fixed_ha
        """Where it sends its log; empty if unknown."""
        self._changed = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        """Called after an address has changed."""

    def learn(self, *, remoting: str, ha: str) -> None:
        """Take addresses that a name server or the master told; empty ones are unknown."""
        remoting = remoting or self.remoting
        ha = self._fixed_ha or ha or self.ha
        if (remoting, ha) == (self.remoting, self.ha):
            return
        logger.info("master found: address=%s ha_address=%s", remoting, ha)
        self.remoting, self.ha = remoting, ha
        self._changed.set()
        for listener in self.on_change:
            listener()

    def hurry(self) -> None:
        """Try the master at once: it, or a name server, says that it is there."""
        self._changed.set()

    async def wait_changed(self, seconds: float) -> None:
        """Return after some time, or when an address has changed or :meth:`hurry` was called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
