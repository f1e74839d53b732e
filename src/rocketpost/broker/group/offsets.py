"""Consumer offsets: the next offset of each group in each queue.

Rows are named ``topic@group``; a legal name contains no ``@``. A commit overwrites the offset, even
with a lower one. A reset by an administrator waits here for the next pull of the queue. Until then,
commits of that queue are ignored, because their consumer does not know of the reset yet. The reset
is saved with the offsets; otherwise a consumer that returns after a crash would undo it.

The table of a slave follows its master's. Commits that consumers make at the slave are marked, and
saved with their mark, until the master has them: until then they are not overwritten by an earlier
offset of the master.

The table also holds the pull progress of each group, for statistics; that is not saved.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from rocketpost.codec.bodies.offset import (
    OffsetTableBody,
    decode_offset_table,
    encode_offset_row,
    encode_offset_table,
)
from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model import names
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion

logger = logging.getLogger(__name__)

NO_OFFSET: Final = -1
OFFSETS_MAX: Final = 2_000_000
"""Offsets of all groups in all queues; beyond it new ones are refused."""
COMMITS_A_VERSION: Final = 500
_NOTHING: Final[Mapping[int, int]] = {}
FORGOTTEN_MAX: Final = 10_000
"""Forgotten rows that are remembered for slaves; a slave that knows less gets the whole table."""


class _Row:
    """The offsets of one group in one topic, and their text while it is current."""

    __slots__ = ("offsets", "reader", "revision", "text")

    def __init__(self, key: str, offsets: dict[int, int], revision: int) -> None:
        topic, _, group = key.partition("@")
        self.reader = topic, group
        """Names of the topic and of the group."""
        self.offsets = offsets
        self.revision = revision
        """Revision of the table after the row's last change."""
        self.text: bytes | None = None


class MarkedCommit(NamedTuple):
    """An offset that a consumer committed at a slave."""

    topic: str
    group: str
    queue_id: int
    offset: int


class OffsetChanges(NamedTuple):
    """Rows of the table that have changed; an empty row was forgotten."""

    text: bytes
    revision: int
    """Revision up to which they include all changes."""
    is_whole: bool
    """Whether they are all rows of the table."""
    is_cut: bool
    """Whether there are more, which did not fit."""


class OffsetTable:
    """The consumer offsets of one broker. Owned by the event loop."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self.resets: dict[tuple[str, int], int] = {}
        """Resets that wait for the next pull of a queue, by row (``topic@group``) and queue."""
        self._commits = 0
        self._count = 0
        self._is_marking = False
        self._marks: dict[tuple[str, int], int] = {}
        self._forgotten: dict[str, int] = {}  # row to the revision at which it was forgotten
        self._known_from = 0  # changes before this revision are known only as the whole table
        self.version = DataVersion()
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Set an offset; return False, changing nothing, while a reset of the queue is pending.

        Raises:
            SystemBusy: There are too many offsets already.
        """
        return self.commit_of(f"{topic}@{group}", queue_id, offset)

    def commit_of(self, row: str, queue_id: int, offset: int) -> bool:
        """Do the same as :meth:`commit`; ``row`` is ``topic@group``."""
        if self.resets and (row, queue_id) in self.resets:
            return False
        self._put(row, queue_id, offset)
        if self._is_marking:
            self._mark(row, queue_id, offset)
        return True

    def query(self, topic: str, group: str, queue_id: int) -> int:
        """Return the group's next offset, ``NO_OFFSET`` if none is known."""
        row = self._rows.get(f"{topic}@{group}")
        return NO_OFFSET if row is None else row.offsets.get(queue_id, NO_OFFSET)

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Record the offset up to which the group has been given messages."""
        self.note_pull_of(f"{topic}@{group}", queue_id, offset)

    def note_pull_of(self, row: str, queue_id: int, offset: int) -> None:
        """Do the same as :meth:`note_pull`; ``row`` is ``topic@group``."""
        pulled = self._pulled.get(row)
        if pulled is None:
            pulled = self._pulled[row] = {}
        pulled[queue_id] = offset

    def pulled_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset up to which the group was given messages, ``NO_OFFSET`` if unknown."""
        return self._pulled.get(f"{topic}@{group}", {}).get(queue_id, NO_OFFSET)

    def pulled_row(self, topic: str, group: str) -> Mapping[int, int]:
        """Return the offsets up to which the group was given messages, by queue."""
        return self._pulled.get(f"{topic}@{group}", _NOTHING)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset that the group's consumer must adopt at its next pull."""
        key = f"{topic}@{group}"
        self._put(key, queue_id, offset)
        self.resets[key, queue_id] = offset
        self.revision += 1

    def has_reset(self, topic: str, group: str, queue_id: int) -> bool:
        """Tell whether a reset waits for the next pull of the queue."""
        return bool(self.resets) and (f"{topic}@{group}", queue_id) in self.resets

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Remove and return a pending reset; None if there is none."""
        if not self.resets:  # Nearly always; every pull asks.
            return None
        taken = self.resets.pop((f"{topic}@{group}", queue_id), None)
        if taken is not None:
            self.revision += 1
        return taken

    def row(self, topic: str, group: str) -> dict[int, int]:
        """Return a copy of the group's committed offsets in a topic, by queue."""
        row = self._rows.get(f"{topic}@{group}")
        return {} if row is None else dict(row.offsets)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Every pair of topic and group that has offsets."""
        return list(self._names())

    def each_row(self) -> Iterator[tuple[tuple[str, str], Mapping[int, int], Mapping[int, int]]]:
        """Yield every topic and group that has offsets, with two tables of offsets by queue.

        The first has the committed offsets, the second those up to which the group was given
        messages. Both are valid until the next step. Rows may be added and deleted between steps:
        new rows are left out, and so are deleted ones.
        """
        pulled = self._pulled
        for key in list(self._rows):
            row = self._rows.get(key)
            if row is not None and row.offsets:
                yield row.reader, row.offsets, pulled.get(key, _NOTHING)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has offsets."""
        return [topic for topic, owner in self._names() if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in the topic."""
        return [group for owner, group in self._names() if owner == topic]

    @property
    def groups(self) -> list[str]:
        """Every group that has any offset."""
        return list(dict.fromkeys(group for _, group in self._names()))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of ``source`` in ``topic`` to ``target``, instead of pending resets."""
        row = self._rows.get(f"{topic}@{source}")
        if row is not None:
            self._check_room(len(row.offsets))
            before = self._rows.get(f"{topic}@{target}")
            self._count += len(row.offsets) - (0 if before is None else len(before.offsets))
            self._note_change()
            key = f"{topic}@{target}"
            self._rows[key] = _Row(key, dict(row.offsets), self.revision)
            for at in [each for each in self.resets if each[0] == key]:
                del self.resets[at]

    def forget_topic(self, topic: str) -> None:
        """Forget every offset in the topic."""
        self._forget(f"{topic}@{group}" for group in self.groups_of(topic))
        prefix = f"{topic}@"
        self._forget_volatile([key for key in self._pulled if key.startswith(prefix)])

    def forget_group(self, group: str) -> None:
        """Forget every offset of the group."""
        self._forget(f"{topic}@{group}" for topic in self.topics_of(group))
        suffix = f"@{group}"
        self._forget_volatile([key for key in self._pulled if key.endswith(suffix)])

    def forget_pulls(self, groups: Collection[str]) -> None:
        """Forget up to which offsets these groups were given messages; the others stay."""
        gone = [key for key in self._pulled if key.rpartition("@")[2] in groups]
        for key in gone:
            del self._pulled[key]

    # -- slaves

    @property
    def marks(self) -> list[MarkedCommit]:
        """The commits that consumers made here, and the master does not have yet."""
        marks = []
        for (key, queue_id), offset in self._marks.items():
            topic, _, group = key.partition("@")
            marks.append(MarkedCommit(topic, group, queue_id, offset))
        return marks

    def begin_marking(self) -> None:
        """Mark commits from now on: this broker is a slave."""
        self._is_marking = True

    def end_marking(self) -> None:
        """Stop marking commits: this broker is the master now, and its offsets are the right ones.

        Marks that are left are forgotten; the offsets stay.
        """
        self._is_marking = False
        if self._marks:
            self._marks.clear()
            self.revision += 1

    def unmark(self, commit: MarkedCommit) -> None:
        """Note that the master has a commit, unless there is a later one."""
        at = f"{commit.topic}@{commit.group}", commit.queue_id
        if self._marks.get(at) == commit.offset:
            del self._marks[at]
            self.revision += 1

    def follow(self, master: OffsetTableBody, *, is_whole: bool) -> None:
        """Apply rows of the master; a marked commit stays where the master is behind it.

        Args:
            master: Rows of its table; an empty one was forgotten there.
            is_whole: Whether they are all rows, so that others are forgotten.
        """
        before = self.revision
        marked: dict[str, dict[int, int]] = {}
        for (key, queue_id), offset in self._marks.items():
            marked.setdefault(key, {})[queue_id] = offset
        for key, offsets in master.offset_table.items():
            self._follow_row(key, offsets, marked.get(key, {}))
        if is_whole:
            for key in [each for each in self._rows if each not in master.offset_table]:
                self._follow_row(key, {}, marked.get(key, {}))
        resets = {
            (key, queue_id): offset
            for key, row in master.pending_reset_table.items()
            for queue_id, offset in row.items()
        }
        if resets != self.resets:
            self.resets = resets
            self.revision += 1
        if self.version != master.data_version:
            self.version = master.data_version
            self.revision = max(self.revision, before + 1)

    def changes_since(
        self, revision: int, *, bytes_max: int, is_partial: bool = False
    ) -> OffsetChanges:
        """Return the rows that changed after a revision, the earliest changes first.

        Args:
            revision: Revision up to which the slave has all changes; 0 if it has nothing.
            bytes_max: Rows beyond this size are left for the next call.
            is_partial: Whether the slave is still fetching the whole table, part by part.
        """
        is_whole = not revision or (revision < self._known_from and not is_partial)
        texts: dict[str, bytes] = {}
        if is_whole:
            revision = 0
        else:
            texts.update((key, b"{}") for key, at in self._forgotten.items() if at > revision)
        changed = sorted(
            (row.revision, key) for key, row in self._rows.items() if row.revision > revision
        )
        size, end, is_cut = sum(map(len, texts)), 0, False
        for at, key in changed:
            text = self._text_of(self._rows[key])
            size += len(key) + len(text)
            if size > bytes_max and end:  # never without a row, so that there is an end
                is_cut = True
                break
            texts[key] = text
            end = at
        return OffsetChanges(
            encode_offset_table(self.version, texts.items(), resets=self._reset_texts()),
            end if is_cut else self.revision,
            is_whole=is_whole and not is_cut,
            is_cut=is_cut,
        )

    # -- texts

    def body(self) -> bytes:
        """Return the body of GET_ALL_CONSUMER_OFFSET."""
        return encode_offset_table(self.version, self._texts())

    def to_json(self) -> bytes:
        """Return the text of ``consumerOffset.json``."""
        return encode_offset_table(
            self.version,
            self._texts(),
            resets=self._reset_texts(),
            marks=_texts_of(self._marks),
            lines=True,
        )

    def load(self, data: bytes) -> None:
        """Load the table from ``consumerOffset.json``; rows with illegal names are dropped.

        Raises:
            StoreError: The text is not an offset table.
        """
        try:
            body = decode_offset_table(data)
        except RemoteProtocolError as error:
            raise StoreError(f"consumerOffset.json cannot be read: {error}") from None
        for key, offsets in body.offset_table.items():
            topic, _, group = key.partition("@")
            if names.topic_problem(topic.replace("+", "_")) or names.group_problem(group):
                logger.warning("offsets dropped: row=%r reason=not topic@group", key)
                continue
            good = {queue: offset for queue, offset in offsets.items() if queue >= 0 <= offset}
            self._rows[key] = _Row(key, good, len(self._rows) + 1)
            self._count += len(good)
        for key, resets in body.pending_reset_table.items():
            row = self._rows.get(key, _Row(key, {}, 0))
            for queue_id, offset in resets.items():
                if row.offsets.get(queue_id) == offset:
                    self.resets[key, queue_id] = offset
        for key, marks in body.to_master_table.items():
            if key in self._rows:
                self._marks |= {(key, queue_id): offset for queue_id, offset in marks.items()}
        self.version = body.data_version
        self.revision = len(self._rows)

    def _put(self, key: str, queue_id: int, offset: int) -> None:
        row = self._rows.get(key)
        if row is None:
            self._check_room(1)
            row = self._rows[key] = _Row(key, {}, self.revision)
            self._forgotten.pop(key, None)
        before = row.offsets.get(queue_id, NO_OFFSET)
        if before == offset:
            return
        if queue_id not in row.offsets:
            self._check_room(1)
            self._count += 1
        if offset < before:
            logger.info(
                "offset moved back: row=%s queue=%s from=%s to=%s", key, queue_id, before, offset
            )
        row.offsets[queue_id] = offset
        row.text = None
        self.revision += 1
        row.revision = self.revision
        self._commits += 1
        if self._commits % COMMITS_A_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())

    def _check_room(self, more: int) -> None:
        if self._count + more > OFFSETS_MAX:
            raise SystemBusy(f"[OVERLOAD]this broker already has {self._count} offsets")

    def _forget(self, keys: Iterator[str]) -> None:
        for key in keys:
            self._count -= len(self._rows.pop(key).offsets)
            self._forget_volatile([key])
            self._note_change()
            self._note_forgotten(key)

    def _forget_volatile(self, keys: list[str]) -> None:
        for key in keys:
            self._pulled.pop(key, None)
            for volatile in (self.resets, self._marks):
                for at in [each for each in volatile if each[0] == key]:
                    del volatile[at]

    def _note_forgotten(self, key: str) -> None:
        self._forgotten[key] = self.revision
        if len(self._forgotten) > FORGOTTEN_MAX:
            for old in list(self._forgotten)[: FORGOTTEN_MAX // 2]:
                self._known_from = max(self._known_from, self._forgotten.pop(old))

    def _mark(self, key: str, queue_id: int, offset: int) -> None:
        if self._marks.get((key, queue_id)) != offset:
            self._marks[key, queue_id] = offset
            self.revision += 1

    def _follow_row(self, key: str, offsets: Mapping[int, int], marks: Mapping[int, int]) -> None:
        """Apply one row; ``marks`` are the marked commits in it."""
        wanted = {queue: offset for queue, offset in offsets.items() if queue >= 0 <= offset}
        for queue_id, offset in marks.items():
            wanted[queue_id] = max(offset, wanted.get(queue_id, NO_OFFSET))
        row = self._rows.get(key)
        if not wanted:
            if row is not None:
                self.revision += 1
                self._count -= len(self._rows.pop(key).offsets)
                self._forget_volatile([key])
                self._note_forgotten(key)
        elif row is None or row.offsets != wanted:
            self.revision += 1
            self._count += len(wanted) - (0 if row is None else len(row.offsets))
            self._rows[key] = _Row(key, wanted, self.revision)
            self._forgotten.pop(key, None)

    def _note_change(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())

    def _names(self) -> Iterator[tuple[str, str]]:
        for row in self._rows.values():
            yield row.reader

    def _texts(self) -> Iterator[tuple[str, bytes]]:
        return ((key, self._text_of(row)) for key, row in self._rows.items())

    def _text_of(self, row: _Row) -> bytes:
        if row.text is None:
            row.text = encode_offset_row(row.offsets)
        return row.text

    def _reset_texts(self) -> Iterator[tuple[str, bytes]]:
        return _texts_of(self.resets)


def _texts_of(offsets: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, bytes]]:
    """Yield the text of each row of offsets by row and queue."""
    rows: dict[str, dict[int, int]] = {}
    for (key, queue_id), offset in offsets.items():
        rows.setdefault(key, {})[queue_id] = offset
    return ((key, encode_offset_row(row)) for key, row in rows.items())
