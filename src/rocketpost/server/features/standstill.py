"""The watch for queues that stand still: a look at every group once a minute."""

from __future__ import annotations

import asyncio
from typing import Final

from rocketpost.broker.group.standstill import StandstillWatch
from rocketpost.server.feature import Feature

ROUND_SECONDS: Final = 60.0
_ROWS_A_TURN: Final = 200


class StandstillFeature(Feature):
    """Looks at all groups again and again. Owned by the loop."""

    def __init__(self, watch: StandstillWatch) -> None:
        self._watch = watch

    async def run(self) -> None:
        """Look once a minute, a few groups in each turn of the loop."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            rows = self._watch.begin_round()
            for start in range(0, len(rows), _ROWS_A_TURN):
                for topic, group in rows[start : start + _ROWS_A_TURN]:
                    self._watch.look(topic, group)
                await asyncio.sleep(0)
