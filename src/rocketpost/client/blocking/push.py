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
from rocketpost.client.consumer.subscriptions import SubscriptionChange
from rocketpost.client.signals import watch_signals
from rocketpost.model.group import SUBSCRIBE_ALL
from rocketpost.model.route import MessageQueue

_LOOK_SECONDS: Final = 0.5


class PushConsumer(BlockingClient[async_push.PushConsumer]):
    """Calls handlers with messages; see :class:`rocketpost.client.PushConsumer`. Thread-safe.

    Plain handlers run in their own threads, never in the caller's.
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
        self._changes: list[Callable[[async_push.PushConsumer], SubscriptionChange]] = []
        self._runners: list[queue.SimpleQueue[signal.Signals | None]] = []

        def make() -> async_push.PushConsumer:
            inner = async_push.PushConsumer(
                group,
                name_servers=name_servers,
                config=self._rename(config),
                strategy=strategy,
                queue_listener=queue_listener,
                offset_store=offset_store,
            )
            for change in self._changes:
                change(inner)
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
        """Call ``handler`` with each message of ``topic``."""
        self._change_subscriptions(
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
        """Call ``handler`` with up to ``batch_max`` messages of ``topic`` at a time."""
        self._change_subscriptions(
            lambda inner: inner.subscribe_batches(
                topic, handler, tags=tags, sql=sql, orderly=orderly, auto_commit=auto_commit
            )
        )

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to ``topic``."""
        self._change_subscriptions(lambda inner: inner.unsubscribe(topic))

    @property
    def client_id(self) -> str:
        """The client id; available once started."""
        return self._now(lambda inner: inner.client_id)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this consumer."""
        return self._now(lambda inner: inner.queues)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop fetching, from all queues or from ``queues``."""
        self._now(lambda inner: inner.pause(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again from ``queues``, or from all paused ones."""
        self._now(lambda inner: inner.resume(queues))

    def stop(self) -> None:
        """Stop fetching, let running handlers finish, store the offsets and unregister."""
        try:
            super().stop()
        finally:
            for ended in list(self._runners):
                ended.put(None)

    def run_forever(self) -> None:
        """Wait until a signal ends the consumer, or another thread stops it.

        In the main thread, SIGTERM and Ctrl-C stop the consumer gracefully; a second signal ends
        the process. A program's own handlers for these signals stay in force.
        """
        inner, _ = self._running()
        ended: queue.SimpleQueue[signal.Signals | None] = queue.SimpleQueue()
        self._runners.append(ended)
        try:
            with watch_signals(ended.put):
                while self._inner is inner:
                    # In slices: a signal that arrives just before a wait does not end it, and its
                    # handler runs only afterwards.
                    with contextlib.suppress(queue.Empty):
                        ended.get(timeout=_LOOK_SECONDS)
                        break
        finally:
            self._runners.remove(ended)
        if self._inner is inner:
            self.stop()

    def after_fork(self) -> None:
        """Drop the parent's state."""
        super().after_fork()
        self._runners = []

    def _change_subscriptions(
        self, change: Callable[[async_push.PushConsumer], SubscriptionChange]
    ) -> None:
        change(self._make())  # report mistakes here, not at the start
        if self._inner is not None:

            async def now(inner: async_push.PushConsumer) -> None:
                await change(inner)

            self._call(now)
        self._changes.append(change)
