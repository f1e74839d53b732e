"""State in the files next to a commit log: topics, deletions, and progress of queues."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.topic import decode_topic_table
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.model.names import is_retry_or_dlq, is_system_topic
from rocketpost.spark.log.queue_files import list_queues
from rocketpost.store.checkpoint import FILE_BYTES, decode_checkpoint
from rocketpost.store.layout import Layout

BATCH_QUEUES: Final = "batchconsumequeue"
"""The folder for queues of topics with the attribute ``queue.type=BatchCQ`` in RocketMQ."""


class StoreState(NamedTuple):
    """State of a store when its reading was planned."""

    topics: frozenset[str]
    """Topics with queues or with a configuration."""
    batch_topics: frozenset[str]
    """Topics whose batches are stored as one record."""
    dead_before: dict[str, int]
    """Positions before which records belong to deleted topics of the same name."""
    settled: int
    """Messages before this position are in the files of their queues, except after a power cut."""
    safe_ms: int | None
    """Messages stored before this time are there even after a power cut; None if all are."""
    newest: int
    """The position of the newest message in any queue file; -1 if there is none."""
    lacks_queues: bool = False
    """Whether a broker of Rocketpost has counted more queues than exist now."""
    without_queues: frozenset[str] = frozenset()
    """Topics with a configuration but no queue files, which may be lost."""


def read_state(layout: Layout) -> StoreState:
    """Read the state of a store.

    Raises:
        StoreError: A table cannot be read.
    """
    # The checkpoint is read first: queues that are read later can only be ahead of it.
    checkpoint = decode_checkpoint(_read_contents(layout.checkpoint)[:FILE_BYTES])
    batch_topics = frozenset(_list_names(f"{layout.root}/{BATCH_QUEUES}"))
    # Brokers of Rocketpost store the progress of every queue. RocketMQ's brokers fill queues in
    # the order of the log, so the newest entry is enough; they store a time for what is on disk.
    progress = checkpoint.progress
    with_queues = frozenset(_list_names(layout.consume_queues))
    queues = [queue for topic in with_queues for _, queue in list_queues(layout, topic)]
    newest = max((queue.newest for queue in queues), default=-1)
    configured = _read_topics(layout)
    lacks_queues = progress is not None and len(queues) < progress.queue_count
    # A topic that never had a message has no queue files either. RocketMQ's brokers do not count
    # queues, so in their stores the topics of users are suspected.
    suspected = {
        topic
        for topic in configured - with_queues - batch_topics
        if lacks_queues or (progress is None and _is_user_topic(topic))
    }
    return StoreState(
        topics=with_queues | batch_topics | configured,
        batch_topics=batch_topics,
        dead_before=_read_deletions(layout),
        settled=max(newest, 0) if progress is None else progress.position,
        safe_ms=checkpoint.times.safe_ms if progress is None else None,
        newest=newest,
        lacks_queues=lacks_queues,
        without_queues=frozenset(suspected),
    )


def _is_user_topic(topic: str) -> bool:
    return not is_system_topic(topic) and not is_retry_or_dlq(topic)


def _read_topics(layout: Layout) -> frozenset[str]:
    path = f"{layout.config}/topics.json"
    data = _read_contents(path)
    try:
        return frozenset(decode_topic_table(data).topic_config_table) if data else frozenset()
    except RocketpostError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


class _Deletion(msgspec.Struct):
    position: int


class _Deletions(msgspec.Struct):
    topics: dict[str, _Deletion] = {}


def _read_deletions(layout: Layout) -> dict[str, int]:
    data = _read_contents(layout.deleted_topics)
    if not data:
        return {}
    try:
        found = msgspec.json.decode(data, type=_Deletions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{layout.deleted_topics} cannot be read: {error}") from error
    return {topic: deletion.position for topic, deletion in found.topics.items()}


def _list_names(folder: str) -> list[str]:
    """Return the names of the directories in a folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if os.path.isdir(f"{folder}/{name}")]


def _read_contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
