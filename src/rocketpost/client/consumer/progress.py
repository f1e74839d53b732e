"""Stores for the progress of a group: on the brokers, or in a local file.

Members that share their queues keep their offsets on the brokers, for the next owner of a queue. A
broadcasting member does not share queues and keeps its own offsets; see ``local_offsets``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from rocketpost.client.checks import is_coroutine_function
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.errors import ClientError, ConfigError, RocketpostError
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps the offsets of a group, or of one member. Called on the event loop."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None if the queue was never consumed.

        If it raises, the consumer does not use the queue yet and asks again.
        """
        ...

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Store offsets; return the queues whose offsets are stored.

        If it raises, none of them is; the consumer tries again later.
        """
        ...


class _UserStore:
    """A store of the application, which may raise anything. Belongs to the event loop."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the stored offset.

        Raises:
            ClientError: The store has raised.
        """
        try:
            return await self._store.load(queue)
        except Exception as error:
            raise ClientError(f"the offset store failed: {error!r}") from error

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Store offsets; log that the store has raised."""
        try:
            return set(await self._store.store(offsets)) & offsets.keys()
        except Exception:
            logger.exception("offsets not stored: queues=%s", len(offsets))
            return set()


def check_store(store: OffsetStore | None) -> OffsetStore | None:
    """Return a store whose failures are those of a client, after checking its methods.

    Raises:
        ConfigError: It lacks one of its two coroutine functions.
    """
    for name in ("load", "store"):
        if store is not None and not is_coroutine_function(getattr(store, name, None)):
            raise ConfigError(f"offset_store needs a coroutine function {name}; see OffsetStore")
    return None if store is None else _UserStore(store)


class BrokerProgress:
    """Offsets of a group on the brokers. Belongs to the event loop."""

    def __init__(self, calls: OffsetCalls, group: str) -> None:
        self._calls = calls
        self._group = group

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the offset stored on the queue's broker."""
        return await self._calls.group_offset(self._group, queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Store offsets on each queue's broker."""
        stored = await asyncio.gather(*(self._store(*item) for item in offsets.items()))
        return {queue for queue, ok in zip(offsets, stored, strict=True) if ok}

    async def _store(self, queue: MessageQueue, offset: int) -> bool:
        try:
            await self._calls.commit_offset(self._group, queue, offset)
            return True
        except RocketpostError as error:
            self._calls.outages.report_failure("offset not stored", queue, error)
            return False
