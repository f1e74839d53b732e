"""Requests of the driver to target brokers of copies: queues, and counts of stored copies."""

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
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.errors import ClientError, Fault
from rocketpost.model.route import MASTER_ID
from rocketpost.spark.client_group import ClientGroup
from rocketpost.spark.pipelines.copying import CopyConfig, Origin, producer_id

logger = logging.getLogger(__name__)

CANCELLED: Final = (PySparkException, Py4JError, ConnectionError)
"""Errors of a cancelled job, or of a job when Spark ends."""

_LOOK_SECONDS: Final = 2.0
_END_SECONDS: Final = 10.0
_END_LOOK_SECONDS: Final = 0.05
_ASKED_AT_ONCE: Final = 32
_GROUP: Final = "SPARK_SINK"


class Targets(ClientGroup):
    """Sends blocking requests to the target brokers of copies. Thread-safe.

    Args:
        config: The settings of the copy job.
        selection: The selection as text.
        found: The original queues.
        topics: The target topics; if empty, the configured or the original topics.
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
        tls = environment_tls_blocking()
        self._producer = Producer(
            _GROUP, config=ProducerConfig(name_servers=servers, credentials=keys, tls=tls)
        )
        self._admin = AdminClient(
            config=ClientConfig(name_servers=servers, credentials=keys, tls=tls)
        )
        super().__init__(self._producer, self._admin)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        Raises:
            RouteNotFound: No broker accepts messages of this topic.
        """
        if topic not in self._known:
            self._known[topic] = self._thread.call(self._producer.queues(topic))
        return self._known[topic]

    def count_stored(self) -> int:
        """Return the number of stored copies, as far as brokers remember.

        Raises:
            ClientError: A broker does not answer, or does not know idempotent producers.
        """
        brokers = {queue.broker_name for topic in self._topics for queue in self.queues(topic)}
        return self._thread.call(self._stored(sorted(brokers)))

    @contextlib.contextmanager
    def watch_progress(
        self, total: int, on_progress: Callable[[int, int], None] | None
    ) -> Iterator[None]:
        """Report the number of stored copies from time to time, in a thread of its own."""
        if on_progress is None:
            yield
            return
        over = threading.Event()

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                try:
                    on_progress(min(self.count_stored(), total), total)
                except (ClientError, Fault) as error:  # the sender gets the error, too
                    logger.debug("no progress: %s", error)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def count_stored_at_end(self, spark: SparkSession) -> int:
        """Return the number of stored copies after the tasks of a cancelled job have ended."""
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(Py4JError, ConnectionError):  # then Spark and its tasks are gone
            tracker = spark.sparkContext._jsc.sc().statusTracker()
            while any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
                if time.monotonic() > deadline:
                    break
                time.sleep(_END_LOOK_SECONDS)
        return self.count_stored()

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
                "only brokers of Rocketpost can store each copy once; these are not"
            ) from None
