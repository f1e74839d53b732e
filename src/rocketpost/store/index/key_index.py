"""The key index: finds messages by topic and key.

A directory of :class:`IndexFile` s, each named after the store time of its first message. Only the
last file is written; when it is full, the next one is made. Files are allocated whole in another
directory before they are mapped (a full disk is an error, never a signal), and then moved into
place, so that the index directory never holds half a file.

Our own file ``index-progress`` (``store.index.progress``) names the file and the entry up to which
all is on disk. It is written after each flush; entries after it are cut off if the stop was
unclean.

The index is derived from the commit log: missing entries are restored when the log is dispatched
again from :attr:`KeyIndex.end_position`. Keys are compared by hash, so a caller must check the
messages found. The list of files is replaced, never modified, so that expiry does not disturb
queries.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import posixpath
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.kernel.hashing import extend_state, index_hash_after
from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig
from rocketpost.store.descriptors import is_transient
from rocketpost.store.draft import Appended
from rocketpost.store.files import FileSystem
from rocketpost.store.index.index_file import IndexFile, file_bytes
from rocketpost.store.index.key_hashes import KeyHashes
from rocketpost.store.index.names import is_name, name_after, name_at
from rocketpost.store.index.progress import IndexProgress
from rocketpost.store.index.spare_file import SpareFile

logger = logging.getLogger(__name__)

STEP_COUNT_MAX: Final = 50_000
"""Largest number of entries that one query examines; about 20 ms of the loop's time."""

_PREPARE_RATIO: Final = 0.75
_ANYWHERE: Final = 2**63 - 1


class KeyIndex:
    """All files of the key index.

    ``put``, ``find`` and the attributes belong to the loop thread. Any thread of the store may call
    the ``*_blocking`` methods at any time. ``load`` is called first.
    """

    def __init__(self, directory: str, config: StoreConfig, files: FileSystem) -> None:
        self._directory = directory
        root = posixpath.dirname(directory)
        self._progress = IndexProgress(files, posixpath.join(root, "index-progress"))
        self._fs = files
        self._slot_count = config.index_slot_count
        self._entry_count_max = config.index_entry_count
        self._file_bytes = file_bytes(self._slot_count, self._entry_count_max)
        self._spare = SpareFile(files, posixpath.join(root, "index-allocating"), self._file_bytes)
        self._files: tuple[IndexFile, ...] = ()
        self._expired: list[str] = []
        self._hashes = KeyHashes()
        self._end = -1
        # Guards the list of files, their descriptors and the spare. It is held neither during an
        # fdatasync nor during a put that makes no new file.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._unlinking = threading.Lock()
        self._directory_unsynced = False
        self._is_sync_lost = False
        self._completed_ms = 0
        self.is_whole = False
        """Whether load found all flushed entries; if not, dispatch from ``end_position`` on."""

    # -- loop thread

    @property
    def end_position(self) -> Position:
        """Position of the newest indexed message; 0 if none. Dispatching it again is harmless."""
        return Position(self._end if self._end > 0 else 0)

    @property
    def end_ms(self) -> int:
        """Time at which the newest indexed message was stored; 0 if none."""
        return self._files[-1].end_ms if self._files else 0

    @property
    def completed_ms(self) -> int:
        """End time of the last file that is full and on disk: RocketMQ's indexMsgTimestamp."""
        return self._completed_ms

    def hashes_of(self, topic: str, keys: Iterable[str]) -> list[int]:
        """Return the hash of each key of a message."""
        return self._hashes.of(topic, keys)

    def put(self, topic: str, keys: Iterable[str], position: Position, store_ms: int) -> None:
        """Index the message at ``position`` under each key, unless it is indexed already.

        Raises:
            StoreFull: A new file is needed and there is no room for it; nothing was indexed.
            StoreBroken: The new file could not be made for another reason.
        """
        if position > self._end:
            self.put_hashes(self.hashes_of(topic, keys), position, store_ms)

    def put_hashes(self, hashes: Sequence[int], position: Position, store_ms: int) -> None:
        """Do the same as :meth:`put`, given the hash of each key.

        Raises:
            StoreFull: A new file is needed and there is no room for it; nothing was indexed.
            StoreBroken: The new file could not be made for another reason.
        """
        if position <= self._end or not hashes:
            return
        last = self._files[-1] if self._files else None
        if last is None or last.room < len(hashes):
            last = self._roll(store_ms, len(hashes))
        pairs = array("q", (hashes[0], position))
        for key_hash in hashes[1:]:
            pairs.extend((key_hash, position))
        last.put(pairs, 0, len(hashes), store_ms)
        self._end = position

    def put_all(self, messages: Sequence[Appended]) -> int:
        """Index messages as long as the last file has room.

        Returns:
            The number of messages handled; :meth:`put` the next one to make a new file.
        """
        if not self._files:
            return 0
        last = self._files[-1]
        done, pairs, runs = self._hashes.gather(messages, self._end, last.room)
        for first, count, store_ms in runs:
            last.put(pairs, first, count, store_ms)
            self._end = pairs[2 * (first + count) - 1]
        return done

    def put_pairs(self, pairs: array[int], first: int, end: int, store_ms: int) -> int:
        """Index messages as long as the last file has room.

        Args:
            pairs: Key hash and position of each key; those of one message follow one another.
            first: The first pair to use.
            end: The pair after the last one to use.
            store_ms: Store time of the last message; those of the others are in the same second.

        Returns:
            The first pair that was not handled; :meth:`put` its message to make a new file.
        """
        if not self._files:
            return first
        while first < end and pairs[2 * first + 1] <= self._end:  # indexed already
            first += 1
        last = self._files[-1]
        stop = min(end, first + last.entry_count_max - last.next_entry)
        if stop < end:
            while stop > first and pairs[2 * stop + 1] == pairs[2 * stop - 1]:
                stop -= 1  # all keys of a message go to one file
        if stop > first:
            last.put(pairs, first, stop - first, store_ms)
            self._end = pairs[2 * stop - 1]
        return stop

    def end_of_second(self, store_ms: int) -> int:
        """Return the end of the second that the entry of a message has in the last file.

        Entries of messages stored from ``store_ms`` up to this time have the same time field.
        """
        last = self._files[-1] if self._files else None
        if last is None or last.is_empty:
            return store_ms + 1  # it sets the time that seconds count from
        return last.end_of_second(store_ms)

    def find(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        before: int = _ANYWHERE,
    ) -> list[Position]:
        """Return the positions below ``before`` of messages with this key hash, newest first.

        Stops after ``STEP_COUNT_MAX`` entries: a key that half of all messages share is no key.
        """
        key_hash = index_hash_after(extend_state(0, topic + "#"), key)
        found: dict[Position, None] = {}
        steps_left = STEP_COUNT_MAX
        for file in reversed(self._files):
            if file.is_empty or file.begin_ms > end_ms or file.end_ms < begin_ms:
                continue
            for position in file.chain(key_hash, begin_ms, end_ms):
                steps_left -= 1
                if position is not None and position < before:
                    found[Position(position)] = None
                if len(found) >= count_max or steps_left <= 0:
                    return list(found)
        return list(found)

    def _roll(self, store_ms: int, count: int) -> IndexFile:
        with self._lock:
            path = posixpath.join(self._directory, self._next_name(store_ms))
            try:
                self._spare.move_to(path)
                file = self._open(path)
            except OSError as error:
                no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
                kind = StoreFull if no_room or is_transient(error) else StoreBroken
                raise kind(f"cannot create the key index file {path}: {error}") from error
            if file.room < count:
                file.close()
                self._fs.unlink(path)
                raise StoreError(
                    f"maxIndexNum={self._entry_count_max} is too small for a message with "
                    f"{count} keys"
                )
            if self._files:
                file.start_after(self._files[-1].end_ms, self._files[-1].end_position)
            self._files = (*self._files, file)
            self._directory_unsynced = True
        logger.info("key index file created path=%s", path)
        return file

    def _next_name(self, store_ms: int) -> str:
        name = name_at(store_ms)
        if self._files:
            last = posixpath.basename(self._files[-1].path)
            if name <= last:  # the clock was set back, or winter time began
                name = name_after(last)
        return name

    # -- store threads

    def load(self, safe_until_ms: int | None) -> None:
        """Open the files found, and cut off entries that an unclean stop may have torn.

        Sets :attr:`is_whole`.

        Args:
            safe_until_ms: None after a clean stop. Otherwise, if our own progress is not known,
                only files that end no later are trusted, as RocketMQ does by its checkpoint.

        A file that is damaged, or has a size other than the settings say, is set aside. All later
        files are deleted and rebuilt from the commit log.

        Raises:
            StoreError: All files have one size, but not that of the settings.
        """
        self._fs.mkdir(self._directory)
        self._spare.discard()
        is_clean = safe_until_ms is None
        synced = self._progress.read()
        names = [name for name in self._fs.listdir(self._directory) if is_name(name)]
        sizes = {self._size(name) for name in names}
        if len(names) > 1 and len(sizes) == 1 and sizes.pop() not in (self._file_bytes, 0):
            raise StoreError(
                f"the files in {self._directory} do not have the {self._file_bytes} bytes "
                "that maxHashSlotNum and maxIndexNum require. Restore the values with "
                "which the files were written, or remove the files: the index is rebuilt "
                "from the commit log"
            )
        # A crash may leave incomplete files, but only after those that were flushed.
        flushed = synced[0] if synced is not None else max(names[:-1], default="")
        found: list[IndexFile] = []
        is_damaged = False
        for name in names:
            size = self._size(name)
            is_empty_last = name == names[-1] and size == 0
            may_go = is_empty_last or (not is_clean and (name > flushed or size == 0))
            if is_damaged or (size != self._file_bytes and may_go):
                self._fs.unlink(posixpath.join(self._directory, name))
                continue
            file = self._open_sound(name, found[-1] if found else None, is_last=name == names[-1])
            if file is None:
                is_damaged = True
            else:
                found.append(file)
        if synced is None:
            self.is_whole = is_clean and bool(found) and not is_damaged
        else:
            numbers = {posixpath.basename(file.path): file.next_entry for file in found}
            self.is_whole = numbers.get(synced[0], 0) >= synced[1]
        if synced is not None and self.is_whole:
            found = self._cut_to(found, *synced, is_clean=is_clean)
        elif safe_until_ms is not None:
            found = self._keep(found, lambda file: file.end_ms <= safe_until_ms)
        self._files = tuple(found)
        self._end = _newest_position(found)
        self._completed_ms = max((file.end_ms for file in found[:-1]), default=0)

    def flush_blocking(self) -> None:
        """Return once all entries put before the call are on disk.

        Also makes the next file in advance when the last is nearly full. After a failed sync, pages
        may be lost that a later sync would not report. Then the progress on disk stays unchanged,
        so that the next start rebuilds the rest.
        """
        with self._sync_lock:
            with self._lock:
                files = self._files
                directory_unsynced, self._directory_unsynced = self._directory_unsynced, False
            try:
                synced = [(file, file.sync_blocking()) for file in files]
            except OSError:
                self._is_sync_lost = True
                self._directory_unsynced |= directory_unsynced
                raise
            try:
                if directory_unsynced:
                    self._fs.fsync_dir(self._directory)
                if synced and not self._is_sync_lost:
                    last, number = synced[-1]
                    self._progress.write_blocking(posixpath.basename(last.path), number)
            except OSError:
                self._directory_unsynced |= directory_unsynced
                raise
            if not self._is_sync_lost:
                self._completed_ms = max((file.end_ms for file in files[:-1]), default=0)
            self._prepare()

    def expire_blocking(self, below: Position) -> int:
        """Unlink the files that only index messages before ``below``, never the last one.

        Returns:
            The number of files unlinked.

        Raises:
            OSError: A file cannot be unlinked; the next call continues with it.
        """
        with self._sync_lock, self._lock:
            files = self._files
            count = 0
            while count < len(files) - 1 and files[count].end_position < below:
                count += 1
            gone, self._files = files[:count], files[count:]
            for file in gone:
                file.close()
            self._expired += [file.path for file in gone]
        with self._unlinking:
            count = 0
            while self._expired:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(self._expired[0])
                del self._expired[0]
                count += 1
            if count:
                self._fs.fsync_dir(self._directory)
        return count

    def newest_before(self, position: int) -> int:
        """Return the position of the newest indexed record before ``position``; 0 if none."""
        for file in reversed(self._files):
            number = file.number_from(position)
            if number > 1:
                return file.position_before(number)
        return 0

    def cut_blocking(self, position: int) -> None:
        """Remove the entries of records from ``position`` on, durably. Safe to repeat.

        The new end is saved first, so that a start after a crash finishes the cut.
        """
        with self._sync_lock, self._lock:
            files = self._files
            kept = [file for file in files if file.number_from(position) > 1]
            assert list(files[: len(kept)]) == kept
            if len(kept) == len(files) and (
                not kept or kept[-1].number_from(position) == kept[-1].next_entry
            ):
                return
            if kept:
                last, number = kept[-1], kept[-1].number_from(position)
                last.sync_blocking()
                self._progress.write_blocking(posixpath.basename(last.path), number)
                last.cut_sound_blocking(number)
            else:
                self._progress.remove_blocking()
            self._files = tuple(kept)
            for file in reversed(files[len(kept) :]):
                self._remove(file)
            self._fs.fsync_dir(self._directory)
            self._end = _newest_position(kept)
            self._completed_ms = max((file.end_ms for file in kept[:-1]), default=0)

    def close_blocking(self) -> None:
        """Make everything durable and close the files."""
        try:
            self.flush_blocking()
        finally:
            with self._sync_lock, self._lock:
                files, self._files = self._files, ()
            for file in files:
                file.close()
            self._spare.discard()

    # -- files

    def _open(self, path: str) -> IndexFile:
        return IndexFile(
            path,
            files=self._fs,
            slot_count=self._slot_count,
            entry_count_max=self._entry_count_max,
        )

    def _size(self, name: str) -> int:
        stat = self._fs.stat(posixpath.join(self._directory, name))
        return stat.size if stat is not None else 0

    def _open_sound(
        self, name: str, previous: IndexFile | None, *, is_last: bool
    ) -> IndexFile | None:
        """Open a file, or set it aside if it cannot belong to this index."""
        path, size = posixpath.join(self._directory, name), self._size(name)
        file = None
        try:
            if size != self._file_bytes:
                raise StoreError(
                    f"it has {size} bytes, but maxHashSlotNum and maxIndexNum require "
                    f"{self._file_bytes}"
                )
            file = self._open(path)
            file.check_follows(previous, is_last=is_last)
        except StoreError as error:
            if file is not None:
                file.close()
            self._set_aside(name, str(error))
            return None
        return file

    def _set_aside(self, name: str, why: str) -> None:
        target = f"{self._directory}-damaged"
        self._fs.mkdir(target)
        for other in self._fs.listdir(target):  # only the newest damaged file is kept
            self._fs.unlink(posixpath.join(target, other))
        self._fs.rename(posixpath.join(self._directory, name), posixpath.join(target, name))
        logger.error(
            "key index file is damaged, it and later ones are rebuilt from the commit log"
            " file=%s moved_to=%s reason=%s", name, target, why,
        )  # fmt: skip

    def _cut_to(
        self, found: list[IndexFile], name: str, number: int, *, is_clean: bool
    ) -> list[IndexFile]:
        """Cut off the entries that ``index-progress`` does not cover.

        Also after a clean stop: a sync may have failed, or another program may have written.
        """
        for file in found:
            is_exact = is_clean and file.next_entry == number
            if posixpath.basename(file.path) == name and not is_exact:
                file.cut_back(number)
        return self._keep(found, lambda file: posixpath.basename(file.path) <= name)

    def _keep(
        self, found: list[IndexFile], is_trusted: Callable[[IndexFile], bool]
    ) -> list[IndexFile]:
        kept: list[IndexFile] = []
        for file in found:
            if is_trusted(file) and not file.is_empty:
                kept.append(file)
            else:
                logger.warning("key index file deleted, to be rebuilt path=%s", file.path)
                self._remove(file)
        return kept

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self._fs.unlink(file.path)

    def _prepare(self) -> None:
        """Allocate the next file before it is needed; a lack of room is no error yet."""
        with self._lock:
            last = self._files[-1] if self._files else None
            if last is None or last.fill_ratio < _PREPARE_RATIO:
                return
            if self._spare.is_made:
                return
            try:
                self._spare.make()
            except OSError as error:
                logger.warning("no room for the next key index file error=%s", error)


def _newest_position(files: list[IndexFile]) -> int:
    return max((file.end_position for file in files if not file.is_empty), default=-1)
