"""Messages of a lake or of brokers into a topic again: in order, at a rate, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyspark.sql import SparkSession

from rocketpost.errors import ConfigError
from rocketpost.model.names import is_retry_or_dlq, is_system_topic
from rocketpost.spark.pipelines.copying import (
    CopyConfig,
    Origin,
    copies,
    originals,
    origins,
    send,
    sending_tasks,
)
from rocketpost.spark.pipelines.selection import Found, Selection, select
from rocketpost.spark.pipelines.targets import CANCELLED, Targets


class QueueCount(msgspec.Struct, frozen=True, rename="camel"):
    """How many messages of a queue are taken, between which offsets."""

    topic: str
    broker: str
    queue_id: int
    messages: int
    first: int
    last: int


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a replay did, or would do.

    Attributes:
        name: What it is called.
        messages: How many were selected.
        stored: How many of them are stored now: all, unless it was a dry run, or was stopped.
        before: So many of them had been sent by earlier runs, as far as brokers remember.
        first_ms: The store time of the oldest.
        last_ms: The store time of the newest.
        queues: Where they come from.
    """

    name: str
    messages: int
    stored: int
    before: int
    first_ms: int | None
    last_ms: int | None
    queues: tuple[QueueCount, ...]


def replay(
    spark: SparkSession,
    selection: Selection,
    config: CopyConfig,
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> ReplayReport:
    """Send messages again; what an earlier run of this name has sent is not sent twice.

    ::

        replay(
            spark,
            Selection(topics=("Orders",), lake="/lake/orders", start_ms=1_795_000_000_000),
            CopyConfig(name_servers="127.0.0.1:9876", name="monday", topic="OrdersAgain", rate=500),
        )

    Args:
        spark: The session.
        selection: Which messages.
        config: How and where to they are sent.
        dry_run: Only count them.
        on_progress: Told now and then how many copies are stored, of how many.
        is_over: Tells whether Spark fails because it was told to; what is stored is told then.

    Raises:
        ConfigError: The selection or the target makes no sense.
        ClientError: Brokers cannot be asked, or messages are gone.
        PySparkException: A task failed for good; run it again to go on.
    """
    if config.topic is None:
        _check_return(selection.topics)
    found = Found(*(originals(each, config) for each in select(spark, selection)))
    queues = origins(found.narrow)
    with Targets(config, selection.words, queues) as targets:
        before = targets.stored() if queues else 0
        report = _report(config.name, queues, before)
        if queues and not dry_run:
            tasks = sending_tasks(config, queues, spark.sparkContext.defaultParallelism)
            rows = copies(
                found.whole,
                config,
                selection=selection.words,
                found=queues,
                tasks=tasks,
                queues_of=targets.queues,
            )
            stored = report.messages
            try:
                with targets.watched(report.messages, on_progress):
                    send(rows, config, tasks=tasks)
            except CANCELLED:
                if not is_over():
                    raise
                stored = min(stored, targets.stored_at_last(spark))
            report = msgspec.structs.replace(report, stored=stored)
    return report


def _check_return(topics: Sequence[str]) -> None:
    for topic in topics:
        if is_retry_or_dlq(topic) or is_system_topic(topic):
            raise ConfigError(
                f"messages of {topic} cannot be sent to where they are; name a topic for them"
            )


def _report(name: str, found: Sequence[Origin], before: int) -> ReplayReport:
    return ReplayReport(
        name=name,
        messages=sum(origin.messages for origin in found),
        stored=before,
        before=before,
        first_ms=min((origin.first_ms for origin in found), default=None),
        last_ms=max((origin.last_ms for origin in found), default=None),
        queues=tuple(
            QueueCount(*origin.queue, origin.messages, origin.first, origin.last)
            for origin in found
        ),
    )
