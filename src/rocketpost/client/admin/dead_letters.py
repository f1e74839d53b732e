"""Administration of dead letters: messages in ``%DLQ%group`` that a group failed to handle.

A dead letter is a copy of the message. It names the topic to which it was sent, and is read like
any message; reading changes nothing. ``resending`` sends it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

from rocketpost.client.admin.dead_letter import EVERYTHING, DeadLetter, Selection
from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.admin.resend_lock import ResendLock
from rocketpost.client.admin.resending import Resender, Resent
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.client.session import Session
from rocketpost.errors import ConfigError, RouteNotFound
from rocketpost.model.group import Subscription
from rocketpost.model.names import dlq_topic, group_problem, retry_topic
from rocketpost.model.route import MessageQueue

_PULL_SECONDS: Final = 10.0


class DeadLetterAdmin:
    """Reads dead letters and resends them to their topics."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def read(
        self, group: str, selection: Selection = EVERYTHING
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group, broker by broker, oldest first.

        Raises:
            ConfigError: The name of the group is illegal.
            RouteNotFound: No broker has ever seen a consumer of the group.
            Fault: A broker refuses.
        """
        for queue in await self._queues(group):
            async for letter in self._letters(group, queue, selection):
                yield letter

    async def resend(
        self,
        group: str,
        selection: Selection = EVERYTHING,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        after: str | None = None,
        on_each: Callable[[Resent], None] = lambda resent: None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> list[Resent]:
        """Send dead letters to their topics again; none twice, even if the call is repeated.

        A message that was resent before is found on the broker by its id and skipped, so an
        interrupted call can simply be repeated. ADR 0016 has the guarantees; they also hold for
        concurrent calls, which wait for each other. The dead letters stay where they are.

        Args:
            group: The group of the dead letters.
            selection: The dead letters to resend.
            dry_run: Whether to only report what would be done.
            rate: Maximum number of messages per second.
            after: The client id of a call that is known to be dead; its lock is not waited for.
            on_each: Called with each dead letter as soon as it is done.
            on_wait: Called once if another call has the lock.

        Returns:
            The outcome of each dead letter, in order.

        Raises:
            ConfigError: The name of the group is illegal.
            RouteNotFound: No broker has ever seen a consumer of the group.
            RequestTimeout: A broker does not answer; repeat the call.
            ConnectionLost: A broker cannot be reached; repeat the call.
            ClientError: Another call kept the lock, or the broker has no key index.
        """
        done: list[Resent] = []
        walk = self.resend_each(
            group, selection, dry_run=dry_run, rate=rate, after=after, on_wait=on_wait
        )
        async with contextlib.aclosing(walk):
            async for resent in walk:
                done.append(resent)
                on_each(resent)
        return done

    async def resend_each(
        self,
        group: str,
        selection: Selection = EVERYTHING,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        after: str | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Resent, None]:
        """Do what :meth:`resend` does, and yield each outcome; nothing is kept in memory.

        Use it in :func:`contextlib.aclosing`, so that the lock is released if you stop early.
        """
        resender = Resender(self._session, rate=rate, dry_run=dry_run)
        for queue in await self._queues(group):
            lock = ResendLock(self._session, queue)
            if not dry_run:
                await lock.acquire(after=after, on_wait=on_wait)
            async with lock:
                async for letter in self._letters(group, queue, selection):
                    yield await resender.resend(letter, lock)

    async def _queues(self, group: str) -> list[MessageQueue]:
        if problem := group_problem(group):
            raise ConfigError(problem)
        topic = dlq_topic(group)
        try:
            route = await self._session.routes.fetch(topic)
        except RouteNotFound:
            await self._check_known(group)
            return []
        queues = subscribe_queues(topic, route)
        if not queues:
            raise RouteNotFound(
                f"the topic {topic} may not be read; `mqadmin updateTopicPerm -p 6` allows it"
            )
        return queues

    async def _check_known(self, group: str) -> None:
        """Check that a group without a dead-letter topic has or had consumers."""
        try:
            await self._session.routes.fetch(retry_topic(group))
        except RouteNotFound as error:
            raise RouteNotFound(
                f"no registered broker has dead letters of the group {group} or has seen a "
                "consumer of it"
            ) from error

    async def _letters(
        self, group: str, queue: MessageQueue, selection: Selection
    ) -> AsyncIterator[DeadLetter]:
        calls = OffsetCalls(self._session)
        offset, end = await calls.min_offset(queue), await calls.max_offset(queue)
        if selection.begin_ms is not None:
            offset = max(offset, await calls.search_offset(queue, selection.begin_ms))
        if selection.end_ms is not None:
            end = min(end, await calls.search_offset(queue, selection.end_ms + 1))
        fetcher, everything = Fetcher(self._session, TOOLS_GROUP), Subscription(topic=queue.topic)
        while offset < end:
            wish = PullQuery(queue, offset, everything)
            result = await fetcher.pull(wish, timeout=_PULL_SECONDS)
            for message in result.messages:
                letter = DeadLetter(group, message)
                if message.queue_offset < end and selection.takes(letter):
                    yield letter
            if result.status is PullStatus.NO_NEW_MSG:
                return
            offset = max(result.next_offset, offset + 1)
