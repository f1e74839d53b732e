"""The SDK for threads and scripts: the same clients with blocking calls.

::

    with Producer("orders", name_servers="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

All clients of a process share one background thread with an event loop. Any thread may use them. In
a forked child they connect again on their first use, with their own client and message ids, and
never touch the parent's connections. A push consumer is the exception: it consumes only in the
process that started it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rocketpost.client import admin as async_admin
from rocketpost.client.blocking.base import BlockingClient
from rocketpost.client.blocking.producer import Producer, TransactionProducer
from rocketpost.client.blocking.pull import LitePullConsumer, PullConsumer
from rocketpost.client.blocking.push import PushConsumer
from rocketpost.client.blocking.simple import SimpleConsumer
from rocketpost.client.config import ClientConfig

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]

T = TypeVar("T")


class AdminClient(BlockingClient[async_admin.AdminClient]):
    """Administration; see :mod:`rocketpost.client.admin`. Thread-safe."""

    def __init__(
        self, *, name_servers: str | None = None, config: ClientConfig | None = None
    ) -> None:
        super().__init__(
            lambda: async_admin.AdminClient(name_servers=name_servers, config=self._rename(config))
        )

    def call(self, work: Callable[[async_admin.AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Run a call of the async client and return its result.

        ::

            info = admin.call(lambda a: a.cluster.info())
        """
        return self._call(work)
