"""Requests about the offsets of queues and of groups.

Apache's broker creates the table of a group's offsets in a topic at the first commit, without a
lock: if two threads handle two first commits, one table replaces the other and an answered commit
is lost. So our first commit to such a table is sent alone and read back, and the others follow it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketpost.client.outages import Outages
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.offset import (
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    TimestampResponse,
    UpdateOffset,
)
from rocketpost.errors import ConnectionLost, RocketpostError, RouteNotFound
from rocketpost.model.route import MessageQueue

OFFSET_TIMEOUT: Final = 5.0
_NOT_FOUND: Final = frozenset({ResponseCode.QUERY_NOT_FOUND})
_FIRST_COMMITS_MAX: Final = 3

T = TypeVar("T")
_Table = tuple[str, str, str]
"""A group, a broker's name and a topic: the key of a broker's table of offsets."""


class Boundary(enum.Enum):
    """The message meant by a search by time."""

    LOWER = "LOWER"
    """The first one stored at that time or later."""
    UPPER = "UPPER"
    """The last one stored at that time or earlier."""


class OffsetCalls:
    """Sends requests about offsets to masters. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        asks_slaves: Whether the bounds of a queue are asked of the smallest id while there is no
            master. That slave may lack the newest messages.
    """

    def __init__(self, session: Session, *, asks_slaves: bool = False) -> None:
        self._session = session
        self._asks_slaves = asks_slaves
        self._tables: set[_Table] = set()
        """Tables that exist, because an offset was read from them."""
        self._first_commits: dict[_Table, asyncio.Future[RocketpostError | None]] = {}

    @property
    def outages(self) -> Outages:
        """Current failures of brokers."""
        return self._session.outages

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._ask(RequestCode.GET_MIN_OFFSET, queue, _queue_header(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to be stored."""
        return await self._ask(RequestCode.GET_MAX_OFFSET, queue, _queue_header(queue))

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of the message stored around a time."""
        header = SearchOffset(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type=boundary.value,
        )
        return await self._ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, header)

    async def earliest_store_ms(self, queue: MessageQueue) -> int:
        """Return the store time of the oldest message; -1 if there is none."""
        address = await self.master(queue)
        response = await self._session.call(
            address, RequestCode.GET_EARLIEST_MSG_STORETIME, _queue_header(queue)
        )
        return response.read(TimestampResponse).timestamp

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's offset in a queue; None if it has never committed one."""
        header = QueryOffset(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
        response = await self._at_master_or_first(
            queue,
            lambda address: self._session.call(
                address,
                RequestCode.QUERY_CONSUMER_OFFSET,
                header,
                timeout=OFFSET_TIMEOUT,
                accept=_NOT_FOUND,
            ),
        )
        if response.code != ResponseCode.SUCCESS:
            return None
        offset = response.read(OffsetResponse).offset
        if offset:  # brokers also answer 0 if nothing is stored
            self._tables.add(_table(group, queue))
        return offset

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit a group's offset to the broker and wait for its answer.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker is unknown, or does not answer.
        """
        table = _table(group, queue)
        while table not in self._tables:
            first = self._first_commits.get(table)
            if first is None:
                await self._commit_first(group, queue, offset)
                return
            await asyncio.wait([first])
            if not first.cancelled() and (error := first.result()) is not None:
                raise error  # another wait would end the same way
        await self._commit(group, queue, offset)

    async def _commit_first(self, group: str, queue: MessageQueue, offset: int) -> None:
        table = _table(group, queue)
        done = self._first_commits[table] = asyncio.get_running_loop().create_future()
        try:
            for _ in range(_FIRST_COMMITS_MAX):
                await self._commit(group, queue, offset)
                # Another member's first commit may have replaced the table.
                if not offset or await self.group_offset(group, queue):
                    break
            self._tables.add(table)
            done.set_result(None)
        except RocketpostError as error:
            done.set_result(error)
            raise
        finally:
            done.cancel()
            del self._first_commits[table]

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self._at_master_or_first(
            queue,
            lambda address: self._session.call(
                address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout=OFFSET_TIMEOUT
            ),
        )

    async def master(self, queue: MessageQueue) -> str:
        """Return the address of a queue's master; fetch the route if necessary.

        Raises:
            RouteNotFound: No master is known.
        """
        routes = self._session.routes
        try:
            return routes.master(queue.broker_name)
        except RouteNotFound:
            await routes.fetch(queue.topic)
            return routes.master(queue.broker_name)

    async def _at_master_or_first(
        self, queue: MessageQueue, call: Callable[[str], Awaitable[T]]
    ) -> T:
        """Make a call to the master, or to the smallest id while there is no master.

        A broker that cannot be reached may just have died: name servers are asked at once, and the
        call is made again if they list another one.
        """
        routes = self._session.routes
        try:
            address = routes.master_or_first(queue.broker_name)
        except RouteNotFound:
            await routes.fetch(queue.topic)
            address = routes.master_or_first(queue.broker_name)
        try:
            return await call(address)
        except ConnectionLost:
            await routes.refresh(queue.topic)
            other = routes.master_or_first(queue.broker_name)
            if other == address:
                raise
        return await call(other)

    async def _ask(
        self, code: int, queue: MessageQueue, header: QueueRequest | SearchOffset
    ) -> int:
        if self._asks_slaves:
            response = await self._at_master_or_first(
                queue, lambda address: self._session.call(address, code, header)
            )
        else:
            response = await self._session.call(await self.master(queue), code, header)
        return response.read(OffsetResponse).offset


def _table(group: str, queue: MessageQueue) -> _Table:
    return group, queue.broker_name, queue.topic


def _queue_header(queue: MessageQueue) -> QueueRequest:
    return QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
