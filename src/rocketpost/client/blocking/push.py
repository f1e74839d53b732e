"""The blocking push consumer; see ``rocketpost.client.blocking``."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable, Collection
from typing import Final

from rocketpost.client.blocking.base import BlockingClient
from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.consumer.allocation import AllocationStrategy
from rocketpost.client.consumer.progress import OffsetStore
from rocketpost.client.consumer.push import consumer as async_push
from rocketpost.client.consumer.push.handlers import BatchHandler, Handler
from rocketpost.client.consumer.rebalance import QueueListener
from rocketpost.client.consumer.subscriptions import Announcement
from rocketpost.client.signals import watch_signals
from rocketpost.model.group import SUBSCRIBE_ALL
from rocketpost.model.route import MessageQueue

_LOOK_SECONDS: Final = 0.5


class PushConsumer(BlockingClient[async_push.PushConsumer]):
    """Has handlers called; see :class:`rocketpost.client.PushConsumer`. Thread-safe.

    Plain handlers run in threads of their own, never in the caller's.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PushConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
        queue_listener: QueueListener | None = None,
        offset_store: OffsetStore | None = None,
    ) -> None:
        self._wishes: list[Callable[[async_push.PushConsumer], Announcement]] = []
        self._runners: list[queue.SimpleQueue[signal.Signals | None]] = []

        def make() -> async_push.PushConsumer:
            inner = async_push.PushConsumer(
                group,
                name_servers=name_servers,
                config=self._named(config),
                strategy=strategy,
                queue_listener=queue_listener,
                offset_store=offset_store,
            )
            for wish in self._wishes:
                wish(inner)
            return inner

        super().__init__(make, survives_fork=False)

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> None:
        """Have ``handler`` called with each message of ``topic``."""
        self._wish(
            lambda inner: inner.subscribe(
                topic, handler, tags=tags, sql=sql, orderly=orderly, auto_commit=auto_commit
            )
        )

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> None:
        """Have ``handler`` called with up to ``batch_max`` messages of ``topic`` at a time."""
        self._wish(
            lambda inner: inner.subscribe_batches(
                topic, handler, tags=tags, sql=sql, orderly=orderly, auto_commit=auto_commit
            )
        )

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to ``topic``."""
        self._wish(lambda inner: inner.unsubscribe(topic))

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client; it has one once started."""
        return self._now(lambda inner: inner.client_id)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._now(lambda inner: inner.queues)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch nothing more, or nothing more of ``queues``."""
        self._now(lambda inner: inner.pause(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again, of ``queues`` or else of everything that was paused."""
        self._now(lambda inner: inner.resume(queues))

    def stop(self) -> None:
        """Stop fetching, let handlers at work finish, store the offsets, take leave."""
        try:
            super().stop()
        finally:
            for ended in list(self._runners):
                ended.put(None)

    def run_forever(self) -> None:
        """Return when a signal ends the consumer, or when another thread has stopped it.

        In the main thread SIGTERM and Ctrl-C stop the consumer in order; a second signal ends the
        process. A program that has handlers for these signals keeps them.
        """
        inner, _ = self._running()
        ended: queue.SimpleQueue[signal.Signals | None] = queue.SimpleQueue()
        self._runners.append(ended)
        try:
            with watch_signals(ended.put):
                while self._inner is inner:
                    # In slices: a signal that arrives just before a wait begins does not end it,
                    # and its handler runs only afterwards.
                    with contextlib.suppress(queue.Empty):
                        ended.get(timeout=_LOOK_SECONDS)
                        break
        finally:
            self._runners.remove(ended)
        if self._inner is inner:
            self.stop()

    def after_fork(self) -> None:
        """Forget what is the parent's."""
        super().after_fork()
        self._runners = []

    def _wish(self, wish: Callable[[async_push.PushConsumer], Announcement]) -> None:
        wish(self._make())  # raises here what it would raise at the start
        if self._inner is not None:

            async def now(inner: async_push.PushConsumer) -> None:
                await wish(inner)

            self._call(now)
        self._wishes.append(wish)
