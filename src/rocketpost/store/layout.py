"""Paths under the store's root; the only place that builds or parses file names.

    commitlog/00000000000000000000        segments, named by the position of their first byte
    commitlog/allocating/                 a segment until it has its full size (Java ignores it)
    commitlog/allocating/lock             held while a process has the commit log open
    consumequeue/{topic}/{queue}/0000...  named by the byte position of their first entry
    dropped/{serial}-{position}-{topic}/  queues of a deleted topic until they are unlinked
    index/yyyyMMddHHmmssSSS               key index
    config/*.json                         tables
    config/known/                         names of tables that were saved before
    timerwheel  timerlog/0000...          due times of messages of the timer topic
    timerwheel.journal0 and 1             changes of the last saves to the wheel
    config/timercheck                     progress of the timer
    checkpoint  abort  lock
    damage.json                           damaged ranges of the commit log
    scrub.json                            progress of the scrub through the commit log
    extent                                least contents that log and queues must have
    truncating                            position at which the log is being cut
    late-queues                           queues may begin at any offset
    epochFileCheckpoint                   terms of the log's bytes, with a copy in .bak
    hard-state-0 and -1                   promises of a member of a group that elects
    resetting                             position at which the log is to begin anew
    outside-group                         a broker outside of the group has used the store
    brokers/{number}/                     stores of further brokers of the same command

``allocating``, ``dropped``, ``config/known``, ``config/droppedTopics.json``,
``config/producerState.json``, ``damage.json``, ``scrub.json``, ``extent``, ``truncating``,
``late-queues``, ``hard-state-0`` and ``-1``, ``resetting``, ``outside-group``, ``brokers`` and the
journals are ours; the rest is RocketMQ's. ``store.origin`` relies on that.
"""

from __future__ import annotations

import posixpath
from typing import Final

NAME_DIGITS: Final = 20
NAME_BYTES_MAX: Final = 255
KNOWN_NAME: Final = "known"
"""Directory of empty files, one for each table that was saved before."""
FURTHER_BROKERS_NAME: Final = "brokers"
NODES_NAME: Final = "nodes"
LOG_LOCK_NAME: Final = "lock"
"""Name of the lock file, in ``allocating`` because Java reads all files beside segments as such."""


class Layout:
    """Paths of one store."""

    def __init__(self, root: str, commit_log: str = "") -> None:
        self.root = root
        self.commit_log = commit_log or posixpath.join(root, "commitlog")
        self.allocating = posixpath.join(self.commit_log, "allocating")
        self.log_lock = posixpath.join(self.allocating, LOG_LOCK_NAME)
        self.consume_queues = posixpath.join(root, "consumequeue")
        self.deleted_queues = posixpath.join(root, "dropped")
        self.index = posixpath.join(root, "index")
        self.config = posixpath.join(root, "config")
        self.known = posixpath.join(self.config, KNOWN_NAME)
        self.deleted_topics = posixpath.join(self.config, "droppedTopics.json")
        self.producer_state = posixpath.join(self.config, "producerState.json")
        self.checkpoint = posixpath.join(root, "checkpoint")
        self.abort = posixpath.join(root, "abort")
        self.lock = posixpath.join(root, "lock")
        self.damage = posixpath.join(root, "damage.json")
        self.scrub = posixpath.join(root, "scrub.json")
        self.extent = posixpath.join(root, "extent")
        self.truncating = posixpath.join(root, "truncating")
        self.late_queues = posixpath.join(root, "late-queues")
        self.terms = posixpath.join(root, "epochFileCheckpoint")
        self.hard_states = (
            posixpath.join(root, "hard-state-0"),
            posixpath.join(root, "hard-state-1"),
        )
        self.resetting = posixpath.join(root, "resetting")
        self.outside_group = posixpath.join(root, "outside-group")
        self.cut_tails = posixpath.join(root, "cut-tails")
        self.further_brokers = posixpath.join(root, FURTHER_BROKERS_NAME)
        self.timer_wheel = posixpath.join(root, "timerwheel")
        self.timer_log = posixpath.join(root, "timerlog")
        self.timer_checkpoint = posixpath.join(self.config, "timercheck")

    def segment(self, start: int) -> str:
        """Return the path of the commit-log segment that starts at ``start``."""
        return posixpath.join(self.commit_log, file_name(start))

    def unfinished_segment(self, start: int) -> str:
        """Return the path of a segment while it is being made."""
        return posixpath.join(self.allocating, file_name(start))

    def timer_journal(self, parity: int) -> str:
        """Return the path of one of the two journals of the timer's wheel."""
        return f"{self.timer_wheel}.journal{parity}"

    def topic_queues(self, topic: str) -> str:
        """Return the directory of a topic's queues."""
        return posixpath.join(self.consume_queues, topic)

    def queue(self, topic: str, queue_id: int) -> str:
        """Return the directory of one queue."""
        return posixpath.join(self.consume_queues, topic, str(queue_id))

    def deleted_topic(self, topic: str, position: int, serial: int) -> str:
        """Return the directory to which the queues of a topic deleted at ``position`` move."""
        return posixpath.join(self.deleted_queues, f"{serial}-{position}-{topic}")


def parse_deleted_topic(name: str) -> tuple[str, int, int] | None:
    """Return topic, position and serial in the name of a directory of ``dropped``, or None."""
    serial, _, rest = name.partition("-")
    position, _, topic = rest.partition("-")
    if not topic or not _is_number(serial) or not _is_number(position):
        return None
    return topic, int(position), int(serial)


def file_name(start: int) -> str:
    """Return the name of a file by the offset of its first byte."""
    return f"{start:0{NAME_DIGITS}d}"


def parse_file_name(name: str) -> int | None:
    """Return the offset in a file name, or None if it is not such a name."""
    return int(name) if len(name) == NAME_DIGITS and _is_number(name) else None


def parse_queue_id(name: str) -> int | None:
    """Return the queue id in a directory name, or None if it is not such a name."""
    return int(name) if _is_number(name) and str(int(name)) == name else None


def is_queue(topic: str, queue_id: int) -> bool:
    """Tell whether a queue has a valid path in the queues directory; damaged names may not."""
    inside = topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic
    return inside and queue_id >= 0 and len(topic.encode()) <= NAME_BYTES_MAX


def _is_number(text: str) -> bool:
    # Other scripts have digits too; a file with such a name is not ours.
    return text.isascii() and text.isdecimal()
