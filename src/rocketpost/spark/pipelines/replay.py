"""Replay of messages from a lake or brokers: in order, at a rate, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyspark.sql import SparkSession

from rocketpost.errors import ConfigError
from rocketpost.model.names import is_retry_or_dlq, is_system_topic
from rocketpost.spark.pipelines.copying import (
    CopyConfig,
    Origin,
    choose_task_count,
    count_origins,
    drop_own_copies,
    make_copies,
    send,
)
from rocketpost.spark.pipelines.selection import SelectedMessages, Selection, select
from rocketpost.spark.pipelines.targets import CANCELLED, Targets


class QueueCount(msgspec.Struct, frozen=True, rename="camel"):
    """The number of selected messages of a queue, and their offsets."""

    topic: str
    broker: str
    queue_id: int
    messages: int
    first: int
    last: int


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The report of a replay, or of a dry run.

    Attributes:
        name: The name of the replay.
        messages: The number of selected messages.
        stored: The number stored so far: all, except in a dry run or a stopped run.
        before: The number sent by earlier runs, as far as brokers remember.
        first_ms: The store time of the oldest message.
        last_ms: The store time of the newest message.
        queues: The original queues.
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
    """Send messages again, except those that an earlier run of this name has sent.

    ::

        replay(
            spark,
            Selection(topics=("Orders",), lake="/lake/orders", start_ms=1_795_000_000_000),
            CopyConfig(name_servers="127.0.0.1:9876", name="monday", topic="OrdersAgain", rate=500),
        )

    Args:
        spark: The session.
        selection: The selection of messages.
        config: The settings of the copy job.
        dry_run: Only count the messages.
        on_progress: Called from time to time with the number of stored copies, and of all.
        is_over: Returns whether Spark fails because it was stopped; then the report is returned.

    Raises:
        ConfigError: The selection or the target is not valid.
        ClientError: Brokers do not answer, or messages are deleted.
        PySparkException: A task failed permanently; run again to continue.
    """
    if config.topic is None:
        _check_return(selection.topics)
    found = SelectedMessages(*(drop_own_copies(each, config) for each in select(spark, selection)))
    queues = count_origins(found.narrow)
    with Targets(config, selection.words, queues) as targets:
        before = targets.count_stored() if queues else 0
        report = _report(config.name, queues, before)
        if queues and not dry_run:
            tasks = choose_task_count(config, queues, spark.sparkContext.defaultParallelism)
            rows = make_copies(
                found.whole,
                config,
                selection=selection.words,
                found=queues,
                tasks=tasks,
                queues_of=targets.queues,
            )
            stored = report.messages
            try:
                with targets.watch_progress(report.messages, on_progress):
                    send(rows, config, tasks=tasks)
            except CANCELLED:
                if not is_over():
                    raise
                stored = min(stored, targets.count_stored_at_end(spark))
            report = msgspec.structs.replace(report, stored=stored)
    return report


def _check_return(topics: Sequence[str]) -> None:
    for topic in topics:
        if is_retry_or_dlq(topic) or is_system_topic(topic):
            raise ConfigError(
                f"messages of {topic} cannot be copied to the same topic; name another "
                "topic for them"
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
