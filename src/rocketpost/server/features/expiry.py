"""The removal of unused topics and groups, every ten minutes."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from rocketpost.broker.expiry import UnusedExpiry
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import StoreConfig

ROUND_SECONDS: Final = 600.0
_NAMES_A_TURN: Final = 500


class ExpiryFeature(Feature):
    """Removes unused names, some in each loop iteration. Owned by the loop."""

    def __init__(self, expiry: UnusedExpiry) -> None:
        self._expiry = expiry

    @classmethod
    def of(cls, context: BrokerContext) -> Self:
        """Return the feature of a broker."""
        tables = context.tables
        return cls(
            UnusedExpiry(
                clock=context.clock,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                membership=context.membership,
                store=context.store,
                stats=context.stats,
            )
        )

    async def run(self) -> None:
        """Look for unused names every ten minutes."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.round()

    async def round(self) -> None:
        """Remove the names that are unused now."""
        old = self._expiry.candidates()
        # Finding the used names is slow if there are many, so it is done only if needed.
        used = self._expiry.used_names() if old else ()
        old = [name for name in old if name not in used]
        for start in range(0, len(old), _NAMES_A_TURN):
            if start:
                used = self._expiry.used_names()  # again: requests came in between
            for name in old[start : start + _NAMES_A_TURN]:
                self._expiry.remove(name, used)
            await asyncio.sleep(0)
        self._expiry.forget_counters()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the age at which unused names are removed."""
        self._expiry.hours = broker.auto_created_expire_hours
