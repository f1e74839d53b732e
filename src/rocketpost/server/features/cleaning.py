"""Retention: deletes expired segments, after the messages still needed were moved out of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature, FeatureSet
from rocketpost.store.retention import CleanPlan

logger = logging.getLogger(__name__)


class Holds(Protocol):
    """Knows which messages do not expire."""

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that does not expire; None if all do."""


async def _nothing() -> None:
    """Do nothing before a round."""


class CleaningFeature(Feature):
    """Deletes expired files. Owned by the loop.

    Args:
        context: The state of the broker.
        features: Asked for the messages that they still need, and to move them.
        holds: Keeps messages from being deleted.
        prepare: Runs before each round.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        features: FeatureSet,
        holds: Holds,
        prepare: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._context = context
        self._store = context.store
        self._features = features
        self._holds = holds
        self._prepare = prepare
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Clean at regular intervals."""
        while True:
            await asyncio.sleep(self._context.store_config.clean_interval_ms / 1000)
            await self._clean(is_requested=False)

    async def clean_now(self) -> int:
        """Delete expired files at any hour; return the number of deleted files."""
        return await self._clean(is_requested=True)

    def runtime_values(self) -> dict[str, str]:
        """Return the disk usage, and the reason why segments are kept."""
        return {
            "diskUsedRatio": f"{self._store.cleaning.disk_ratio:.4f}",
            "segmentsKeptReason": self._store.cleaning.why_kept or "",
        }

    async def _clean(self, *, is_requested: bool) -> int:
        cleaning = self._store.cleaning
        async with self._one_at_a_time:
            await self._prepare()
            now_ms = self._context.clock.wall_ms()  # like the times of files
            hour = datetime.fromtimestamp(now_ms / 1000).hour
            try:
                plan = await asyncio.to_thread(
                    cleaning.plan_blocking,
                    now_ms=now_ms,
                    hour=hour,
                    is_requested=is_requested,
                    held=self._holds.oldest_needed_position(),
                    needed=self._features.oldest_needed_position(),
                )
                plan = await self._move_needed(plan)
                cleaning.apply(plan)
                while cleaning.trim_queues():  # noqa: ASYNC110 - lets requests in between
                    await asyncio.sleep(0)
                return await asyncio.to_thread(cleaning.unlink_blocking)
            except Exception:
                logger.exception("cleaning failed, will be tried again")
                return 0

    async def _move_needed(self, plan: CleanPlan) -> CleanPlan:
        """Move needed messages out of a plan's segments; return the plan of what may be deleted."""
        segment_bytes = self._context.store_config.segment_bytes
        try:
            if plan.to_delete:
                await self._move_before(plan.to_delete[-1] + segment_bytes)
        except StoreError as error:
            why_kept = str(error)
        else:
            return plan
        to_delete: list[Position] = []
        with contextlib.suppress(StoreError):
            for start in plan.to_delete:
                await self._move_before(start + segment_bytes)
                to_delete.append(start)
        return plan._replace(to_delete=tuple(to_delete), why_kept=why_kept)

    async def _move_before(self, position: int) -> None:
        await self._features.move_messages_before(position)
        # A power cut must not undo the moves: the originals are about to be deleted.
        await asyncio.to_thread(self._store.flush_blocking)
