"""What the driver asks of the brokers that get copies: queues of topics, and what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rocketpost.client import MessageQueue, Producer, ProducerConfig
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.client.credentials import environment_credentials
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.errors import ClientError, Fault
from rocketpost.model.route import MASTER_ID
from rocketpost.spark.client_group import ClientGroup
from rocketpost.spark.pipelines.copying import CopyConfig, Origin, producer_id

logger = logging.getLogger(__name__)

CANCELLED: Final = (PySparkException, Py4JError, ConnectionError)
"""What a job may fail with when it is cancelled, or when Spark ends with it."""

_LOOK_SECONDS: Final = 2.0
_END_SECONDS: Final = 10.0
_END_LOOK_SECONDS: Final = 0.05
_ASKED_AT_ONCE: Final = 32
_GROUP: Final = "SPARK_SINK"


class Targets(ClientGroup):
    """A blocking line to the brokers that get the copies of some queues. Thread-safe.

    Args:
        config: How they are sent.
        selection: What was selected, in words.
        found: The queues that they come from.
        topics: Where they go; to that of the configuration, or back, if empty.
    """

    def __init__(
        self,
        config: CopyConfig,
        selection: str,
        found: Sequence[Origin],
        *,
        topics: Sequence[str] = (),
    ) -> None:
        self._topics = topics or sorted({config.topic or origin.queue.topic for origin in found})
        self._ids = [producer_id(config, selection, origin.queue) for origin in found]
        self._known: dict[str, list[MessageQueue]] = {}
        servers, keys = config.name_servers, environment_credentials()
        self._producer = Producer(
            _GROUP, config=ProducerConfig(name_servers=servers, credentials=keys)
        )
        self._admin = AdminClient(config=ClientConfig(name_servers=servers, credentials=keys))
        super().__init__(self._producer, self._admin)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written to.

        Raises:
            RouteNotFound: No broker takes messages of this topic.
        """
        if topic not in self._known:
            self._known[topic] = self._thread.call(self._producer.queues(topic))
        return self._known[topic]

    def stored(self) -> int:
        """Return how many copies are stored, as far as brokers remember.

        Raises:
            ClientError: One does not answer, or knows no idempotent producers.
        """
        brokers = {queue.broker_name for topic in self._topics for queue in self.queues(topic)}
        return self._thread.call(self._stored(sorted(brokers)))

    @contextlib.contextmanager
    def watched(self, total: int, on_progress: Callable[[int, int], None] | None) -> Iterator[None]:
        """Tell how many copies are stored, now and then, from a thread of its own."""
        if on_progress is None:
            yield
            return
        over = threading.Event()

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                try:
                    on_progress(min(self.stored(), total), total)
                except (ClientError, Fault) as error:  # who sends hears of it as well
                    logger.debug("no progress: %s", error)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def stored_at_last(self, spark: SparkSession) -> int:
        """Return how many copies are stored once the tasks of a cancelled job have ended."""
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(Py4JError, ConnectionError):  # then Spark is gone, and they too
            tracker = spark.sparkContext._jsc.sc().statusTracker()
            while any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
                if time.monotonic() > deadline:
                    break
                time.sleep(_END_LOOK_SECONDS)
        return self.stored()

    async def _stored(self, brokers: Sequence[str]) -> int:
        places = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def one(address: str, name: str) -> int:
            async with places:
                states = await self._admin.brokers.producer_states(address, producer_id=name)
            return sum(end - start for state in states.producers for start, end in state.runs)

        masters = []
        for broker in brokers:
            addresses = await self._admin.cluster.broker_addresses(broker)
            if MASTER_ID not in addresses:
                raise ClientError(f"the broker {broker} has no master that could store copies")
            masters.append(addresses[MASTER_ID])
        asked = [one(address, name) for address in masters for name in self._ids]
        try:
            return sum(await asyncio.gather(*asked))
        except RequestCodeNotSupported:
            raise ClientError(
                "copies are stored once by brokers of Rocketpost only; these are others"
            ) from None
