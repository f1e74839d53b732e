"""Snapshots of the state of idempotent producers, saved regularly, and requests that show it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from rocketpost.codec.bodies.producers import ProducerStates
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.client import GetProducerStates
from rocketpost.errors import StoreError
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.features.dedup_recovery import producer_limits, recover_blocking
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.metrics.exposition import Family, Sample, counter, label_text
from rocketpost.server.routes.access import GET, of_cluster, strict
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.thread_work import finish_in_thread
from rocketpost.store.config import StoreConfig
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

SHOWN_MAX: Final = 1000
"""Most producers in one answer."""
RUNS_SHOWN_MAX: Final = 100_000
_MOVE_BYTES: Final = 64 * 1024 * 1024
"""A snapshot is saved again when a start would have to read this much of the log."""


class DedupFeature(Feature):
    """Saves and shows the producers. Owned by the loop.

    Args:
        context: The state of the broker and its leader.
        is_foreign: Whether RocketMQ alone has written to the store so far.
    """

    def __init__(self, context: LeaderContext, *, is_foreign: bool = False) -> None:
        self._context = context
        self._is_foreign = is_foreign
        self._store = context.store
        self._keys = context.dedup.keys
        self._clock = context.clock
        self._interval_s = context.broker_config.idempotent_save_ms / 1000
        self._writer = context.writer
        self._saved_revision = -1
        self._saving = asyncio.Lock()

    async def open(self) -> None:
        """Recover the state of producers, and the unique keys, from the snapshot and the log."""
        context = self._context
        state = await asyncio.to_thread(
            recover_blocking,
            context.store,
            topics=context.tables.topics,
            config=context.broker_config,
            clock=context.clock,
            is_foreign=self._is_foreign,
            keys=self._keys,
        )
        self._producers = context.dedup.producers = state.producers
        self._file, self._repair = state.producers_file, state.repair
        self._saved_position = self._producers.position

    def routes(self) -> Sequence[Route]:
        """Return the route of requests about producers."""
        return [
            plain(
                RequestCode.GET_PRODUCER_STATES,
                GetProducerStates,
                strict(of_cluster(GET)),
                self.show,
            ),
        ]

    async def run(self) -> None:
        """Remove silent producers, and save the others, at regular intervals."""
        while True:
            await asyncio.sleep(self._interval_s)
            self._producers.expire(self._clock.now_ms())
            if not self._is_due():
                continue
            try:
                await self.save()
            except StoreError as error:
                logger.error("producers not saved, will be tried again: reason=%s", error)

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the limits."""
        self._producers.limits = producer_limits(broker)
        self._keys.configure(default_seconds=broker.dedup_seconds, keys_max=broker.dedup_keys_max)

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of duplicates that were not stored."""
        yield counter(
            "rocketpost_once_duplicates_total",
            "Duplicates that were recognized and not stored.",
            [
                Sample(label_text({"by": "sequence"}), self._producers.duplicates),
                Sample(label_text({"by": "unique_key"}), self._keys.duplicates),
            ],
        )

    def runtime_values(self) -> dict[str, str]:
        """Return the counters of producers and keys."""
        return {
            "idempotentProducers": str(len(self._producers)),
            "idempotentProducersForgotten": str(self._producers.forgotten),
            "duplicatesBySequence": str(self._producers.duplicates),
            "duplicatesByUniqueKey": str(self._keys.duplicates),
            "uniqueKeysKept": str(len(self._keys)),
            "producerStateRepair": self._repair,
        }

    def show(self, connection: Connection, command: Command, header: GetProducerStates) -> Reply:
        """Return the state of one producer, or of those that sent last."""
        count_max = min(max(1, header.count_max), SHOWN_MAX)
        states = list(islice(self._producers.states(header.producer_id), count_max))
        runs_left = RUNS_SHOWN_MAX
        for state in states:
            if header.producer_id is None or len(state.runs) > runs_left:
                state.runs = state.runs[-max(1, min(header.runs_max, runs_left)) :]
            runs_left = max(0, runs_left - len(state.runs))
        return json_reply(ProducerStates(producers=states, total=len(self._producers)))

    async def save(self) -> None:
        """Save a snapshot that covers every message written so far.

        Raises:
            StoreError: It could not be saved; the snapshot saved before is still there.
        """
        async with self._saving:
            self._writer.commit()
            revision, position = self._producers.revision, int(self._store.written_position)
            data = self._producers.to_json(position)
            if not await self._writer.wait_kept():
                return  # the earlier snapshot stays valid, whether or not these messages survive
            try:
                await finish_in_thread(self._save_blocking, data)
            except OSError as error:
                raise StoreError(f"the producers could not be saved: {error}") from error
            self._saved_revision, self._saved_position = revision, position

    def _save_blocking(self, data: bytes) -> None:
        # A snapshot must not cover messages that a power cut can still undo.
        self._store.flush_blocking()
        self._file.save_blocking(data)

    def _is_due(self) -> bool:
        behind = self._store.written_position - self._saved_position
        return self._producers.revision != self._saved_revision or behind >= _MOVE_BYTES
