"""The watch for queues that stand still: it checks every group once a minute."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from rocketpost.broker.group.standstill import Standstill, StandstillWatch
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature

ROUND_SECONDS: Final = 60.0
_ROWS_A_TURN: Final = 200


class StandstillFeature(Feature):
    """Checks all groups once a minute. Owned by the loop."""

    def __init__(self, watch: StandstillWatch) -> None:
        self._watch = watch

    @classmethod
    def of(cls, context: BrokerContext) -> Self:
        """Return the feature of a broker."""
        return cls(
            StandstillWatch(
                clock=context.clock,
                offsets=context.tables.offsets,
                standstill=standstill_of(context),
            )
        )

    async def run(self) -> None:
        """Check all groups once a minute, some in each loop iteration."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            rows = self._watch.begin_round()
            for start in range(0, len(rows), _ROWS_A_TURN):
                for topic, group in rows[start : start + _ROWS_A_TURN]:
                    self._watch.look(topic, group)
                await asyncio.sleep(0)


def standstill_of(context: BrokerContext) -> Standstill:
    """Return the service that finds the reason why a group does not advance."""
    tables = context.tables
    return Standstill(
        clock=context.clock,
        broker_name=context.identity.name,
        queues=context.store,
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        membership=context.membership,
        locks=context.locks,
    )
