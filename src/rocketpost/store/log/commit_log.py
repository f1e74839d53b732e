"""The commit log: every message of every topic, one after another.

Records are packed on the loop thread and written once per wake-up. A record never spans two files:
when ``size + 8`` does not fit, a blank (bytes left, 0xCBD43194) ends the file. Three positions
track the log: *end* (appended) >= *written* (in the page cache) >= the flusher's *durable*.
"""

from __future__ import annotations

import logging
import mmap
from struct import Struct
from typing import Final
from zlib import crc32

from rocketpost.codec.properties import (
    CHECKSUM_BYTES,
    CHECKSUM_NAME,
    PROPERTIES_BYTES_MAX,
    encode_checksum,
    without_checksum,
)
from rocketpost.codec.record import (
    CRC_MASK,
    HEAD_V4,
    HEADS,
    MAGIC_BLANK,
    STORE_TIME_AT,
    SYS_FLAG_AT,
    host_bits,
    topic_field,
)
from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.kernel.record_scan import is_torn
from rocketpost.model import sysflag
from rocketpost.store.descriptors import may_pass
from rocketpost.store.draft import Draft
from rocketpost.store.files import IOV_MAX, Buffer, FileSystem
from rocketpost.store.log.allocator import Allocator
from rocketpost.store.log.segment import ReadPages, Segment
from rocketpost.store.log.segmented_log import SegmentedLog

logger = logging.getLogger(__name__)

BLANK: Final = Struct(">ii")
BLANK_BYTES: Final = BLANK.size
JOIN_BYTES_MAX: Final = 1024 * 1024
"""Size up to which copying into one buffer costs less than writing many small pieces."""
TOPIC_CACHE_COUNT_MAX: Final = 16384

_SHORT: Final = Struct(">h")
_LONG: Final = Struct(">q")
_INT: Final = Struct(">i")
_TIMES_END: Final = STORE_TIME_AT + 8 + 12  # a sender with IPv6 takes 12 bytes more
_pack_head = HEAD_V4.pack
_pack_short = _SHORT.pack
_HEAD_BYTES: Final = HEAD_V4.size
_IPV4_HOST_BYTES: Final = 8
_NUL: Final = b"\0"
_HASH: Final = b"#"
"""Part of a checksum's name, and of hardly any other property."""
_SEPARATOR: Final = b"\x02"
_NOWHERE: Final = -1
_PARTS: Final = 5
"""Number of buffers that a record is packed into."""
_UNSIGNED: Final = encode_checksum(0)


class CommitLog:
    """Appends records and provides views of them. Belongs to the loop thread."""

    def __init__(
        self,
        files: FileSystem,
        segments: SegmentedLog,
        allocator: Allocator,
        *,
        long_topics: bool = True,
        append_checksum: bool = False,
    ) -> None:
        self._files = files
        self._segments = segments
        self._allocator = allocator
        self._long_topics = long_topics
        self._append_checksum = append_checksum
        self._topics: dict[str, tuple[int, bytes]] = {}
        self._segment: Segment | None = None
        self.room_end = 0
        """A record must end at or before this position."""
        self._buffers: list[Buffer] = []
        self._packed_index = _NOWHERE  # of the packed records among the buffers
        self._packed_begin = 0
        self._packed_end = 0
        self._sealed: list[tuple[Segment, int, list[Buffer]]] = []
        self.end = 0
        self.written = 0

    def start_at(self, end: int) -> None:
        """Continue at ``end``, as found by recovery."""
        self.end = self.written = end
        self._aim()
        if self._segment is not None:
            self._segment.open()
            self._allocator.prepare(self._segment.end)

    def _aim(self) -> None:
        """Direct the next record to the segment that holds ``end``, or to a new one."""
        self._segment = self._segments.find(self.end)
        self.room_end = self._segment.end - BLANK_BYTES if self._segment is not None else self.end

    @property
    def first(self) -> int:
        """The position of the oldest record kept."""
        segment = self._segments.first
        return segment.start if segment is not None else self.end

    def append(self, draft: Draft, queue_offset: int, store_ms: int) -> int:
        """Append a record; returns its position. It ends at the new ``end``.

        Raises:
            StoreFull: The next segment cannot be allocated; nothing was changed.
            StoreError: The properties look like those of a torn record.
        """
        topic = draft.topic
        body = draft.body
        properties = draft.properties
        if _NUL in properties or _HASH in properties:
            properties = _sound(properties)
        is_unsigned = False
        if self._append_checksum:
            properties = _with_checksum_room(given := properties)
            is_unsigned = properties is not given
        born_host = draft.born_host
        store_host = draft.store_host
        try:
            magic, topic_bytes = self._topics[topic]
        except KeyError:
            magic, topic_bytes = self._topic(topic)
        sys_flag = draft.sys_flag
        pack, head_bytes = _pack_head, _HEAD_BYTES
        if len(born_host) != _IPV4_HOST_BYTES or len(store_host) != _IPV4_HOST_BYTES:
            head = HEADS[len(born_host), len(store_host)]
            pack, head_bytes = head.pack, head.size
            sys_flag = host_bits(sys_flag, born_host, store_host)
        body_bytes = len(body)
        size = head_bytes + body_bytes + len(topic_bytes) + 2 + len(properties)
        position = self.end
        if position + size > self.room_end:
            self.reserve(size)
            position = self.end
        self._buffers.extend(
            (
                pack(
                    size,
                    magic,
                    crc32(body) & CRC_MASK,
                    draft.queue_id,
                    draft.flag,
                    queue_offset,
                    position,
                    sys_flag,
                    draft.born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    draft.reconsume_times,
                    draft.prepared_position,
                    body_bytes,
                ),
                body,
                topic_bytes,
                _pack_short(len(properties)),
                properties,
            )
        )
        if is_unsigned:
            self._sign_last()
        self.end = position + size
        return position

    def append_packed(self, records: memoryview, begin: int, end: int) -> None:
        """Append ``records[begin:end]``, packed for this position and within ``room_end``.

        The bytes must stay as they are until the next write. Those that continue the last ones are
        written with them, without a copy.
        """
        assert self.end + end - begin <= self.room_end
        self.end += end - begin
        buffers = self._buffers
        if self._packed_index == len(buffers) - 1 != _NOWHERE:
            self._packed_end = end
            return
        if self._packed_index != _NOWHERE:
            self._cut_packed()
        self._packed_index, self._packed_begin, self._packed_end = len(buffers), begin, end
        buffers.append(records)  # it is cut to the range when no more can follow

    def extend_packed(self, end: int) -> None:
        """Append the records that were packed after those of :meth:`append_packed`, up to ``end``.

        Args:
            end: The position after the last of them. Nothing else was appended in between.
        """
        assert self._packed_index == len(self._buffers) - 1 != _NOWHERE
        self._packed_end += end - self.end
        self.end = end

    def _cut_packed(self) -> None:
        """Replace the whole buffer of packed records by the range that was appended."""
        at = self._packed_index
        if at != _NOWHERE:
            packed = self._buffers[at]
            self._buffers[at] = packed[self._packed_begin : self._packed_end]
            self._packed_index = _NOWHERE

    def _sign_last(self) -> None:
        """Put the checksum into the record that was packed last."""
        *parts, properties = self._buffers[-_PARTS:]
        signed = b"".join((*parts, properties[:-CHECKSUM_BYTES]))
        self._buffers[-_PARTS:] = (signed, encode_checksum(crc32(signed) & CRC_MASK))

    def size_of(self, draft: Draft) -> int:
        """Return the size of the record of ``draft`` in bytes."""
        head = HEADS[len(draft.born_host), len(draft.store_host)]
        topic_bytes = self._topic(draft.topic)[1]
        properties = _sound(draft.properties)
        if self._append_checksum:
            properties = _with_checksum_room(properties)
        return head.size + len(draft.body) + len(topic_bytes) + 2 + len(properties)

    def reserve(self, size: int) -> None:
        """Make room for ``size`` bytes of records in one file, starting a new one if need be.

        Raises:
            StoreFull: The next segment cannot be allocated; nothing was changed.
            StoreError: A segment is too small for them.
        """
        if self.end + size <= self.room_end:
            return
        if size + BLANK_BYTES > self._segments.segment_bytes:
            raise StoreError(
                f"a record of {size} bytes does not fit in a segment of "
                f"{self._segments.segment_bytes} (mappedFileSizeCommitLog)"
            )
        self._roll()

    def write(self) -> None:
        """Write everything appended since the last write.

        Raises:
            StoreFull: There was no room; the records appended since are discarded.
            StoreBroken: The write failed; they are discarded, and no more may be written.
        """
        if self.end == self.written:
            return
        self._cut_packed()
        try:
            at = self.written
            for sealed, end, parts in self._sealed:
                self._write_buffers(sealed, at, end, parts)
                at = sealed.end
            segment, buffers = self._segment, self._buffers
            if len(buffers) == 1 and segment is not None:  # usually one wave of records
                segment.write(buffers[0], at - segment.start)
            elif buffers:
                assert segment is not None
                self._write_buffers(segment, at, self.end, buffers)
        except OSError as error:
            self._forget_unwritten(error)
        self._buffers = []
        self._sealed.clear()
        self.written = self.end

    def write_raw(self, position: int, data: bytes | memoryview) -> None:
        """Write records of a leader, which fit in one segment, at the end of the log.

        An empty log may begin at any segment.

        Raises:
            StoreFull: There is no room; nothing was changed.
            StoreBroken: The write failed, and no more may be written.
        """
        assert self.end == self.written
        before, is_beginning = self.end, not len(self._segments)
        segment = self._segments.find(position)
        if segment is None:
            segment = self._allocator.take(position)
            self._segments.add(segment)
        self.end = self.written = position
        assert position + len(data) <= segment.end
        try:
            segment.write(data, position - segment.start)
        except OSError as error:
            if is_beginning:
                self._take_back_beginning(segment, before)
            self._forget_unwritten(error)
        self.end = self.written = position + len(data)
        if self._segment is not segment or self.end == segment.end:
            self._aim()

    def view(self, position: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at ``position`` without copying, or None if the log lacks them."""
        segment = self._segments.find(position)
        if segment is None or position < 0 or position + size > self.written:
            return None
        at = position - segment.start
        found = (segment._view or segment.view())[at : at + size]
        return found if len(found) == size else None

    def part_at(self, position: int) -> tuple[memoryview, int, int] | None:
        """Return the file with ``position``: its bytes, its start, and where its records end."""
        segment = self._segments.find(position)
        if segment is None:
            return None
        start, written = segment.start, self.written
        end = start + segment.size
        return segment._view or segment.view(), start, end if end < written else written

    def is_cached(self, position: int, size: int) -> bool:
        """Tell whether these bytes are in memory; True if that is unknown."""
        segment = self._segments.find(position)
        return segment is None or segment.is_cached(position - segment.start, size)

    def is_readable(self, position: int, size: int) -> bool:
        """Tell whether a view of these bytes can be used (``Segment.is_readable``)."""
        segment = self._segments.find(position)
        return segment is not None and segment.is_readable(position - segment.start, size)

    def store_time(self, position: int, pages: ReadPages | None = None) -> int:
        """Return the store time of the record at ``position``; -1 if it cannot be read.

        Args:
            position: The position.
            pages: The pages that the caller has read since others ran; they are not read again.
        """
        segment, end = self._segments.find(position), position + _TIMES_END
        if segment is None or end > self.written:
            return -1
        at, view = position - segment.start, segment._view or segment.view()
        if at + _TIMES_END > len(view):
            return -1
        if pages is None or position < pages.start or end > pages.end:
            if not segment.is_readable(at, _TIMES_END):
                return -1
            if pages is not None:
                pages.start = position - at % mmap.PAGESIZE
                pages.end = end + -(at + _TIMES_END) % mmap.PAGESIZE
        six = _INT.unpack_from(view, at + SYS_FLAG_AT)[0] & sysflag.BORN_HOST_V6
        found: int = _LONG.unpack_from(view, at + STORE_TIME_AT + (12 if six else 0))[0]
        return found

    def _topic(self, topic: str) -> tuple[int, bytes]:
        found = self._topics.get(topic)
        if found is None:
            found = topic_field(topic, long_topics=self._long_topics)
            if len(self._topics) >= TOPIC_CACHE_COUNT_MAX:
                self._topics.clear()
            self._topics[topic] = found
        return found

    def _roll(self) -> None:
        old = self._segment
        start = old.end if old is not None else self.end
        # A failed write may have taken the next segment already.
        new = self._segments.find(start)
        if new is None:
            new = self._allocator.take(start)
            self._segments.add(new)
        if old is not None:
            self._cut_packed()
            self._buffers.append(BLANK.pack(old.end - self.end, MAGIC_BLANK))
            self._sealed.append((old, self.end + BLANK_BYTES, self._buffers))
            self._buffers = []
        self._segment = new
        self.end = new.start
        self.room_end = new.end - BLANK_BYTES

    def _write_buffers(self, segment: Segment, start: int, end: int, buffers: list[Buffer]) -> None:
        at = start - segment.start
        if len(buffers) == 1:
            segment.write(buffers[0], at)
            return
        if end - start <= JOIN_BYTES_MAX:
            segment.write(b"".join(buffers), at)
            return
        for first in range(0, len(buffers), IOV_MAX):
            some = buffers[first : first + IOV_MAX]
            taken = self._files.pwritev(segment.fd, some, at)
            wanted = sum(map(len, some))
            if taken < wanted:
                segment.write(b"".join(some)[taken:], at + taken)
            at += wanted

    def _take_back_beginning(self, segment: Segment, end: int) -> None:
        """Undo the beginning of an empty log at a segment: it may have to begin at a later one."""
        self._segments.remove(segment)
        self.end = self.written = end
        try:
            self._allocator.reset(end)
            self._files.unlink(segment.path)
            self._files.fsync_dir(self._segments.directory)
        except OSError as error:
            raise StoreBroken(
                f"{segment.path} could not be written, and not be removed: {error.strerror}"
            ) from error

    def _forget_unwritten(self, error: OSError) -> None:
        """Discard the records of a failed write, and raise.

        Some of them may be whole in the file already. If they stayed, a crash after later appends
        could bring them back. So they are erased; if that fails, the log accepts no more writes.
        """
        self._buffers = []
        self._packed_index = _NOWHERE
        self._sealed.clear()
        self.end = self.written
        touched = self._segments.between_from_thread(self.written, self.written + 1)
        self._segment = touched[0] if touched else self._segments.last
        self.room_end = self._segment.end - BLANK_BYTES if self._segment is not None else self.end
        if may_pass(error) and self._erase_unwritten():
            raise StoreFull(f"the commit log could not be written: {error.strerror}") from error
        raise StoreBroken(f"the commit log could not be written: {error.strerror}") from error

    def _erase_unwritten(self) -> bool:
        try:
            for segment in self._segments.all():
                if segment.end > self.written:
                    segment.zero_from(max(0, self.written - segment.start))
        except OSError as error:
            logger.error("could not erase a half-written tail reason=%s", error.strerror)
            return False
        return True


def _sound(properties: bytes) -> bytes:
    """Return properties that recovery cannot mistake for those of a damaged or torn record.

    A checksum that a message brings along, when it was consumed and sent again, belongs to another
    record and is removed. Zeros in place of text are the sign of a torn record
    (``kernel.record_scan.is_torn``). A zero at the very end, or a longer name that ends like a
    checksum's, is followed by a separator, which changes no property. Many zeros in a row are
    refused.
    """
    if CHECKSUM_NAME in properties:
        properties = without_checksum(properties)
    if properties.endswith(_NUL) or properties[-CHECKSUM_BYTES:].startswith(CHECKSUM_NAME):
        properties += _SEPARATOR
    if is_torn(b"", properties) or len(properties) > PROPERTIES_BYTES_MAX:
        raise StoreError(
            "the properties hold too many zero bytes to be distinguished from a torn record"
        )
    return properties


def _with_checksum_room(properties: bytes) -> bytes:
    """Return properties that end with an empty checksum, if there is room for one."""
    room = PROPERTIES_BYTES_MAX - CHECKSUM_BYTES - len(properties)
    if not properties or properties.endswith(_SEPARATOR):
        return properties + _UNSIGNED if room >= 0 else properties
    # The properties of a copy made by the broker may be too long; such sends are refused.
    return properties + _SEPARATOR + _UNSIGNED if room > 0 else properties
