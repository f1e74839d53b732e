"""State in the files beside a commit log: topics, deletions, and the progress of queues."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.topic import decode_topic_table
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.model.names import is_retry_or_dlq, is_system_topic
from rocketpost.spark.log.queue_files import queues_of
from rocketpost.store.checkpoint import FILE_BYTES, decode_checkpoint
from rocketpost.store.layout import Layout

BATCH_QUEUES: Final = "batchconsumequeue"
"""Where RocketMQ keeps the queues of topics with the attribute ``queue.type=BatchCQ``."""


class StoreState(NamedTuple):
    """State of a store when its reading was planned."""

    topics: frozenset[str]
    """Topics with queues or with a configuration."""
    batch_topics: frozenset[str]
    """Those whose batches are stored as one record."""
    dead_before: dict[str, int]
    """For topics that were deleted: records before this position are of their earlier life."""
    settled: int
    """Every message before this position is in the files of its queue, unless power was lost."""
    safe_ms: int | None
    """Those that were stored before this time are there even then; None if all are."""
    newest: int
    """Where the newest message begins that is in the files of any queue; -1 if none is."""
    lacks_queues: bool = False
    """Whether a broker of ours has counted more queues than there are now."""
    without_queues: frozenset[str] = frozenset()
    """Topics with a configuration whose queue files may be missing: they have none at all."""


def state_of(layout: Layout) -> StoreState:
    """Return how a store stands.

    Raises:
        StoreError: A table cannot be read.
    """
    # The checkpoint comes first: queues that are looked at later can only be further.
    checkpoint = decode_checkpoint(_contents(layout.checkpoint)[:FILE_BYTES])
    batch_topics = frozenset(_names(f"{layout.root}/{BATCH_QUEUES}"))
    # Brokers of ours note how far every queue is. Those of RocketMQ put messages into queues in
    # the order of the log, so the newest tells of all; what they have on disk they know by time.
    progress = checkpoint.progress
    with_queues = frozenset(_names(layout.consume_queues))
    queues = [queue for topic in with_queues for _, queue in queues_of(layout, topic)]
    newest = max((queue.newest for queue in queues), default=-1)
    configured = _configured(layout)
    lacks_queues = progress is not None and len(queues) < progress.queue_count
    # A topic that never had a message has no queue files either. RocketMQ's brokers do not count
    # queues; of their stores the topics that users made are suspected.
    suspected = {
        topic
        for topic in configured - with_queues - batch_topics
        if lacks_queues or (progress is None and _is_users(topic))
    }
    return StoreState(
        topics=with_queues | batch_topics | configured,
        batch_topics=batch_topics,
        dead_before=_deletions(layout),
        settled=max(newest, 0) if progress is None else progress.position,
        safe_ms=checkpoint.times.safe_ms if progress is None else None,
        newest=newest,
        lacks_queues=lacks_queues,
        without_queues=frozenset(suspected),
    )


def _is_users(topic: str) -> bool:
    return not is_system_topic(topic) and not is_retry_or_dlq(topic)


def _configured(layout: Layout) -> frozenset[str]:
    path = f"{layout.config}/topics.json"
    data = _contents(path)
    try:
        return frozenset(decode_topic_table(data).topic_config_table) if data else frozenset()
    except RocketpostError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


class _Dropped(msgspec.Struct):
    position: int


class _Deletions(msgspec.Struct):
    topics: dict[str, _Dropped] = {}


def _deletions(layout: Layout) -> dict[str, int]:
    data = _contents(layout.dropped_topics)
    if not data:
        return {}
    try:
        found = msgspec.json.decode(data, type=_Deletions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{layout.dropped_topics} cannot be read: {error}") from error
    return {topic: dropped.position for topic, dropped in found.topics.items()}


def _names(folder: str) -> list[str]:
    """Return the directories in a folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if os.path.isdir(f"{folder}/{name}")]


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
