"""Replacement of a member's whole log by an empty one that begins later.

A member that lacks bytes which its leader has deleted, or whose log cannot be repaired, gets a log
that begins where the leader's does. The file ``resetting`` decides that: once it is on disk, the
next start finishes what was interrupted. So a member has its old log or the new one.

    0    8 bytes   b"RPRESET1"
    8    uint32    CRC-32 of the text
    12   ...       JSON: {"first": position, "spans": [[term, start], ...],
                   "position": position, "members": [[name, address, is voter], ...],
                   "starts": {topic: {queue id: offset}, ...}}

Queues continue at the offsets that the leader's queues had at that position, also those without a
message since. Everything that was derived from the log is removed with it: queues, index,
checkpoint, damage. Files of the owner (timers, tables) are the owner's concern.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration, Member
from rocketpost.store.config import StoreConfig
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import (
    FileSystem,
    make_directory,
    read_whole_blocking,
    write_all,
    write_whole_blocking,
)
from rocketpost.store.layout import Layout, parse_file_name
from rocketpost.store.member.hard_state import STATE_LOST, HardState, HardStateFile, HardStateLost
from rocketpost.store.member.term_file import TermFile, check_spans
from rocketpost.store.store_lock import StoreLock

logger = logging.getLogger(__name__)

_MAGIC: Final = b"RPRESET1"
_HEAD: Final = Struct(">8sI")


class _Plan(msgspec.Struct, frozen=True):
    first: int
    spans: list[tuple[int, int]]
    position: int
    members: list[tuple[str, str, bool]]
    starts: dict[str, dict[int, int]] = {}


def reset_log_blocking(
    config: StoreConfig,
    files: FileSystem,
    *,
    first: int,
    spans: tuple[tuple[int, int], ...],
    members: Configuration,
    starts: dict[str, dict[int, int]] | None = None,
    on_reset: Callable[[Position], None],
) -> None:
    """Replace the log of a closed store by an empty one, durably.

    Args:
        config: The store's settings.
        files: The file system.
        first: Beginning and end of the new log; the start of a segment.
        spans: Terms of bytes before it.
        members: The members of the group at that position.
        starts: Offsets at which queues continue, by topic and id.
        on_reset: Called with ``first``, so that the owner durably removes what it derived from the
            old log. Called again after a crash.

    Raises:
        StoreLocked: The store is open.
        StoreError: The log cannot begin there; nothing was changed. Or a file could not be changed:
            the next call, or the next start, finishes the reset.
    """
    if first % config.segment_bytes:
        raise StoreError(
            f"a log cannot begin at {first}: it is not a multiple of"
            f" mappedFileSizeCommitLog={config.segment_bytes}"
        )
    try:
        check_spans(spans)
    except ValueError as error:
        raise StoreError(f"a log cannot begin at {first}: {error}") from error
    if any(start >= first for _, start in spans):
        raise StoreError(f"a log cannot begin at {first}: {spans} has later terms")
    stated = [(each.name, each.address, each.is_voter) for each in members.members]
    plan = _Plan(first, list(spans), members.position, stated, starts or {})
    _Reset(config, files).run_blocking(plan, on_reset)


def finish_reset_blocking(
    config: StoreConfig, files: FileSystem, *, on_reset: Callable[[Position], None]
) -> str:
    """Finish a reset that was interrupted, if there is one; returns why it cannot be finished.

    Raises:
        StoreLocked: The store is open.
        StoreError: A file could not be changed; the next start tries again.
    """
    reset = _Reset(config, files)
    try:
        if files.stat(reset.layout.resetting) is None:
            return ""
        plan = reset.load_blocking()
    except OSError as error:
        raise StoreError(f"{reset.layout.resetting} cannot be read: {error}") from error
    except (ValueError, msgspec.DecodeError) as error:
        return f"the log was being replaced, but {reset.layout.resetting} is damaged: {error}"
    logger.warning("finishing an interrupted replacement of the log first=%s", plan.first)
    reset.run_blocking(plan, on_reset)
    return ""


def remove_tree_blocking(files: FileSystem, path: str) -> None:
    """Remove a file, or a directory with everything in it, if it exists.

    Raises:
        OSError: Something cannot be removed.
    """
    found = files.stat(path)
    if found is None:
        return
    if not found.is_directory:
        files.unlink(path)
        return
    for name in files.listdir(path):
        remove_tree_blocking(files, f"{path}/{name}")
    files.fsync_dir(path)
    files.rmdir(path)


class _Reset:
    """The steps of one reset."""

    def __init__(self, config: StoreConfig, files: FileSystem) -> None:
        self._config = config
        self._files = files
        self.layout = Layout(config.root, config.commit_log_path)

    def load_blocking(self) -> _Plan:
        """Read the decision.

        Raises:
            ValueError: The file is damaged.
        """
        data = read_whole_blocking(self._files, self.layout.resetting)
        text = data[_HEAD.size :]
        if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (_MAGIC, crc32(text)):
            raise ValueError("its CRC does not match")
        return msgspec.json.decode(text, type=_Plan)

    def run_blocking(self, plan: _Plan, on_reset: Callable[[Position], None]) -> None:
        """Decide the reset and carry it out; safe to repeat."""
        lock = StoreLock(self._files, self.layout)
        lock.take_blocking()
        try:
            self._decide(plan)
            self._save_state(plan)
            self._remove_log()
            self._make_log(plan.first)
            if plan.starts:
                deleted = DeletedTopics(self._files, self.layout.deleted_topics)
                deleted.begin_with(plan.starts)
                deleted.save_blocking()
            TermFile(self._files, self.layout.terms).replace_blocking(plan.spans)
            on_reset(Position(plan.first))
            self._files.unlink(self.layout.resetting)
            self._files.fsync_dir(self.layout.root)
        except OSError as error:
            raise StoreError(f"the log cannot be replaced: {error}") from error
        finally:
            lock.release_blocking(clean=False)
        logger.warning("log replaced by an empty one first=%s", plan.first)

    def _decide(self, plan: _Plan) -> None:
        text = msgspec.json.encode(plan)
        temporary = f"{self.layout.resetting}.tmp"
        fd = self._files.open(temporary, create=True)
        try:
            self._files.ftruncate(fd, 0)
            write_all(self._files, fd, _HEAD.pack(_MAGIC, crc32(text)) + text, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, self.layout.resetting)
        self._files.fsync_dir(self.layout.root)

    def _save_state(self, plan: _Plan) -> None:
        file = HardStateFile(self._files, self.layout.hard_states)
        try:
            state = file.load_blocking() or HardState()
        except HardStateLost:
            state = HardState(suspect=STATE_LOST)
        members = tuple(Member(*member) for member in plan.members)
        last_term = plan.spans[-1][0] if plan.spans else 0
        if last_term > state.term:
            state = state._replace(term=last_term, vote=None)
        changed = state._replace(
            commit=max(state.commit, plan.first),
            watermark=0,
            suspect=min(state.suspect, STATE_LOST),
            configurations=(Configuration(plan.position, members),),
        )
        try:
            file.save_blocking(changed)
        finally:
            file.close()

    def _remove_log(self) -> None:
        """Remove the log and everything derived from it."""
        layout, files = self.layout, self._files
        for name in files.listdir(layout.commit_log):
            if parse_file_name(name) is not None:
                files.unlink(f"{layout.commit_log}/{name}")
        for directory in (layout.consume_queues, layout.deleted_queues, layout.index):
            remove_tree_blocking(files, directory)
        for path in (
            layout.deleted_topics,
            f"{layout.deleted_topics}.bak",
            layout.checkpoint,
            layout.extent,
            layout.truncating,
            layout.damage,
            layout.scrub,
            layout.outside_group,
        ):
            if files.stat(path) is not None:
                files.unlink(path)
        for directory in (layout.commit_log, layout.config, layout.root):
            if files.stat(directory) is not None:
                files.fsync_dir(directory)

    def _make_log(self, first: int) -> None:
        """Make the segment in which the log begins and ends."""
        layout, files = self.layout, self._files
        make_directory(files, layout.allocating)
        unfinished = layout.unfinished_segment(first)
        fd = files.open(unfinished, create=True)
        try:
            files.ftruncate(fd, 0)
            files.fallocate(fd, self._config.segment_bytes)
            files.fdatasync(fd)
        finally:
            files.close(fd)
        files.rename(unfinished, layout.segment(first))
        files.fsync_dir(layout.commit_log)
        write_whole_blocking(files, layout.late_queues, b"")
