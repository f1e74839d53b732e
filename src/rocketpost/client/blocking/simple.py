"""The blocking simple consumer; see ``rocketpost.client.blocking``."""

from __future__ import annotations

from rocketpost.client.blocking.base import BlockingClient
from rocketpost.client.config import ClientConfig, StartFrom
from rocketpost.client.consumer import simple_consumer as async_simple
from rocketpost.client.consumer.pop_calls import COUNT_MAX, PoppedMessage
from rocketpost.model.group import SUBSCRIBE_ALL


class SimpleConsumer(BlockingClient[async_simple.SimpleConsumer]):
    """Receives and acknowledges; see :class:`rocketpost.client.SimpleConsumer`. Thread-safe."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        enable_spans: bool = False,
        config: ClientConfig | None = None,
    ) -> None:
        self._topics: dict[str, tuple[str, str | None]] = {}
        super().__init__(
            lambda: async_simple.SimpleConsumer(
                group,
                name_servers=name_servers,
                start_from=start_from,
                orderly=orderly,
                enable_spans=enable_spans,
                config=self._rename(config),
            )
        )

    def stop(self) -> None:
        """Close the connections and drop the subscriptions."""
        super().stop()
        self._topics.clear()

    def subscribe(self, topic: str, tags: str = SUBSCRIBE_ALL, *, sql: str | None = None) -> None:
        """Receive messages of ``topic`` from now on."""
        self._call(lambda inner: inner.subscribe(topic, tags, sql=sql))
        self._topics[topic] = tags, sql

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic``."""
        self._call(lambda inner: inner.unsubscribe(topic))
        self._topics.pop(topic, None)

    def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        invisible_seconds: float = 60.0,
        await_seconds: float = 15.0,
    ) -> list[PoppedMessage]:
        """Return messages; none if none arrive in time."""
        return self._call(
            lambda inner: inner.receive(
                count_max, invisible_seconds=invisible_seconds, await_seconds=await_seconds
            )
        )

    def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message; returns when the broker has stored the acknowledgement."""
        self._call(lambda inner: inner.ack(message))

    def change_invisible_duration(self, message: PoppedMessage, seconds: float) -> None:
        """Make a message visible again after ``seconds``; 0 for at once."""
        self._call(lambda inner: inner.change_invisible_duration(message, seconds))

    async def _begin(self, inner: async_simple.SimpleConsumer) -> None:
        await inner.start()
        try:
            for topic, (
                tags,
                sql,
            ) in self._topics.items():  # a child has the parent's
                await inner.subscribe(topic, tags, sql=sql)
        except BaseException:
            await inner.stop()
            raise
