"""Deleted topics, and the positions of the commit log at which they were deleted.

The records of a deleted topic stay in the log until they expire. Without this list, a queue rebuilt
from the log would show them again, mixed with those of a later topic of the same name.
``config/droppedTopics.json`` holds ``{"serial": n, "topics": {topic: {"position": P, "next":
{queue id: offset}}}, "crc": c}``: records of the topic before P are dead, and its queues, if they
are created again, continue at offset ``next``, so that no offset ever means two messages.

A master of RocketMQ begins again at offset 0 when a topic is deleted and created again. A slave
does the same with each queue: ``"restarts": {queue id: P}`` says that records of the queue before P
are dead, and that their offsets are assigned again.

A member of a group whose log begins late has ``"starts": {topic: {queue id: offset}}``: the offsets
that its queues had at the beginning of the log. A queue without messages since continues there.

``droppedTopics.json.bak`` is a copy: without the file, offsets could be assigned twice.

A deletion first moves the queues aside in one rename, then writes this file, then unlinks. After a
crash in between, the moved directory supplies the same facts as the file would. Deletions have
serial numbers, so that a deletion already in the file is not read again from a directory that a
crash brought back.
"""

from __future__ import annotations

import logging
from typing import Final
from zlib import crc32

import msgspec

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, make_directory, read_whole_blocking, write_all

logger = logging.getLogger(__name__)

COUNTED_MAX: Final = 10_000
"""Largest number of deletions remembered after their last record has expired."""


class DeletedTopic(msgspec.Struct, omit_defaults=True):
    """One deletion."""

    position: int
    next: dict[int, int]
    restarts: dict[int, int] = {}
    """Queue to the position at which it began again at offset 0."""

    @property
    def last_position(self) -> int:
        """Position after the last dead record."""
        return max(self.position, *self.restarts.values(), 0)


class _File(msgspec.Struct, omit_defaults=True):
    serial: int = 0
    topics: dict[str, DeletedTopic] = {}
    starts: dict[str, dict[int, int]] = {}
    crc: int | None = None
    """CRC-32 of the rest, to detect a changed digit. None in a file of an earlier version."""

    def checksum(self) -> int:
        rest = (self.serial, self.topics, *([self.starts] if self.starts else []))
        return crc32(msgspec.json.encode(rest))


def _encode(stored: _File) -> bytes:
    stored.crc = stored.checksum()
    return msgspec.json.format(msgspec.json.encode(stored), indent=1)


def _decode(data: bytes) -> _File:
    stored = msgspec.json.decode(data, type=_File)
    if stored.crc is not None and stored.crc != stored.checksum():
        raise ValueError("its checksum does not match")
    return stored


class DeletedTopics:
    """The deletions that still matter. The loop thread changes them; any thread saves them."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._by_topic: dict[str, DeletedTopic] = {}
        self._starts: dict[str, dict[int, int]] = {}
        self.serial = 0
        """Number of the latest deletion."""
        self.is_changed = False
        """Whether there are changes that are not in the file yet."""
        self.saved_serial = 0
        """Number of the latest deletion in the file. Any thread may read it."""
        self.is_copied = True
        """Whether the file and its copy were sound and identical when they were read."""

    def load_blocking(self) -> None:
        """Read the file or its copy, whichever has the later serial number.

        Raises:
            StoreError: Neither can be read; guessing could bring deleted messages back.
        """
        found: list[_File] = []
        problem: Exception = ValueError("it is empty")
        for path in (self._path, self._path + ".bak"):
            data = read_whole_blocking(self._files, path)
            if not data:
                continue
            try:
                found.append(_decode(data))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                logger.error("list of deleted topics is damaged path=%s reason=%s", path, error)
                problem = error
        if not found:
            if self._files.stat(self._path) is None:
                return
            raise StoreError(
                f"{self._path} is damaged, and so is its .bak: {problem}. Restore one of "
                "them from a backup; or remove both, but then messages of deleted topics "
                "may reappear"
            ) from problem
        newest = max(found, key=lambda each: each.serial)
        self.serial = self.saved_serial = newest.serial
        self._by_topic = newest.topics
        self._starts = newest.starts
        self.is_copied = len(found) == 2 and found[0] == found[1]

    def encode(self) -> bytes:
        """Return the up-to-date contents of the file. Any thread: it takes a snapshot."""
        return _encode(self._take_snapshot())

    def _take_snapshot(self) -> _File:
        # A single encode call, since the loop thread may add a deletion between two calls.
        return msgspec.json.decode(
            msgspec.json.encode(_File(self.serial, self._by_topic, self._starts)), type=_File
        )

    def save_blocking(self) -> None:
        """Replace the file, durably. Any thread, one at a time."""
        # Cleared first, so that a deletion made during the write does not count as saved.
        self.is_changed = False
        stored = self._take_snapshot()
        try:
            self._save(_encode(stored))
        except OSError:
            self.is_changed = True
            raise
        self.saved_serial = stored.serial

    def _save(self, data: bytes) -> None:
        directory = self._path.rpartition("/")[0]
        make_directory(self._files, directory)
        for path in (self._path, self._path + ".bak"):
            self._replace(path, data)
            self._files.fsync_dir(directory)

    def _replace(self, path: str, data: bytes) -> None:
        temporary = self._path + ".tmp"
        fd = self._files.open(temporary, create=True)
        try:
            self._files.ftruncate(fd, 0)
            write_all(self._files, fd, data, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, path)

    def add(self, topic: str, position: int, next_offsets: dict[int, int], *, serial: int) -> None:
        """Note that ``topic`` was deleted when the log ended at ``position``."""
        known = self._by_topic.get(topic) or DeletedTopic(0, {})
        merged = {
            queue_id: max(known.next.get(queue_id, 0), next_offsets.get(queue_id, 0))
            for queue_id in known.next | next_offsets
        }
        deletion = DeletedTopic(max(known.position, position), merged, known.restarts)
        others = {name: each for name, each in self._by_topic.items() if name != topic}
        # A thread may take a snapshot at any time: the deletion is in it before its number is.
        self._by_topic = {**others, topic: deletion}
        self.serial = max(self.serial, serial)
        self.is_changed = True

    def begin_with(self, starts: dict[str, dict[int, int]]) -> None:
        """Begin with no deletions, and let queues continue at these offsets, by topic and id."""
        self._by_topic, self._starts = {}, starts
        self.serial += 1
        self.is_changed = True

    def raise_next(self, topic: str, queue_id: int, offset: int) -> None:
        """Note that offsets below ``offset`` of a deleted queue were assigned."""
        deletion = self._by_topic[topic]
        if offset > deletion.next.get(queue_id, 0):
            deletion.next[queue_id] = offset
            self.is_changed = True

    def snapshot(self) -> dict[str, DeletedTopic]:
        """Return a copy of the deletions, by topic."""
        return {
            topic: DeletedTopic(each.position, dict(each.next), dict(each.restarts))
            for topic, each in self._by_topic.items()
        }

    def restart(self, topic: str, queue_id: int, position: int) -> None:
        """Note that a queue begins again at offset 0, with the record at ``position``."""
        deletion = self._by_topic.setdefault(topic, DeletedTopic(0, {}))
        deletion.restarts[queue_id] = position
        deletion.next.pop(queue_id, None)
        self.serial += 1
        self.is_changed = True

    def position(self, topic: str, queue_id: int) -> int:
        """Return the position before which the records of a queue are dead; 0 if none are."""
        deletion = self._by_topic.get(topic)
        if deletion is None:
            return 0
        return max(deletion.position, deletion.restarts.get(queue_id, 0))

    def deleted_before(self, topic: str) -> int:
        """Return the position at which the whole topic was deleted last; 0 if it never was."""
        deletion = self._by_topic.get(topic)
        return deletion.position if deletion is not None else 0

    def restart_position(self, topic: str, queue_id: int) -> int:
        """Return the position at which a queue began again at offset 0; 0 if it never did."""
        deletion = self._by_topic.get(topic)
        return deletion.restarts.get(queue_id, 0) if deletion is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue that is created now."""
        start = self._starts.get(topic, {}).get(queue_id, 0) if self._starts else 0
        deletion = self._by_topic.get(topic)
        if deletion is None:
            return start
        offset = deletion.next.get(queue_id, 0)
        return offset if queue_id in deletion.restarts else max(start, offset)

    def settle(self, first: int, end: int) -> None:
        """Adjust the deletions to a recovered log [``first``, ``end``).

        A deletion past the end followed records that were lost; new records will take their
        positions and must not count as dead. A deletion before the start hides no record any more,
        but still sets the next offsets; only the latest of those are kept.
        """
        old = [topic for topic, each in self._by_topic.items() if each.last_position <= first]
        for topic in old[: max(0, len(old) - COUNTED_MAX)]:
            del self._by_topic[topic]
            self.is_changed = True
        for deletion in self._by_topic.values():
            if deletion.last_position > end:
                deletion.position = min(deletion.position, end)
                deletion.restarts = {queue: min(at, end) for queue, at in deletion.restarts.items()}
                self.is_changed = True
