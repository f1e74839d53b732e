# cython: initializedcheck=False, cdivision=True
"""The pull lane: repeated pulls told from each other, and answered, without decoding them.

The pulls of a consumer from one queue are the same bytes, but for three numbers: the queue offset,
the committed offset and the opaque number. :meth:`PullLane.split` takes these numbers out of a
request, and the signature of a signed one. What is left, its *shape*, is a key: the caller decodes
one request of a shape in the ordinary way, and knows what the others mean.
:meth:`PullLane.answer` writes a complete response, records included, into one ``bytes``.

    JSON     "queueOffset":"N", "commitOffset":"N" and "opaque":N, wherever they are
    binary   the fields queueOffset and commitOffset with their lengths; the opaque number, and the
             length of all fields, at their fixed places
    both     the field Signature, if signatures are asked for

**Invariants:** two requests of one shape differ in nothing but these numbers, the lengths that
follow from them, and the signature. Nothing is read outside a frame. Numbers have at most 18 digits
and no leading zeros; others make a request odd, which means that :meth:`PullLane.split` returns
None.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import (
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
        memcmp,
        memcpy,
        prefetch,
    )

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

HEADER_BYTES_MAX = 1024
"""Longest header that is split."""

_HEADER_BYTES_MAX = HEADER_BYTES_MAX
_FRAME_BYTES_MAX = 16 * 1024 * 1024
_HEAD_BYTES_MAX = 4096
_PREFIX_BYTES = 8
_BINARY_BYTES = 21
_OPAQUE_AT = 5
_FIELDS_AT = 17
_DIGITS_MAX = 18
_INT_MAX = 2**31 - 1
_UNIT_BYTES = 20
_SIZE_AT = 8
_TAGS_AT = 12
_FILLER_SIZE = 0x7FFF_FFFF
_COPIED_BYTES_MAX = 16 * 1024
_PLACE_BYTES = 10
_SIGNATURE_BYTES = 28
_AHEAD = 2
"""Number of records ahead of the copied one that are fetched from memory: they are not adjacent."""


class AnswerHead:
    """The fixed parts of the head of an answer, between which the numbers are written.

    The numbers are the next, the first and the last offset, and in JSON the opaque number.

    Args:
        pieces: The fixed parts: five in JSON, four in the binary encoding, where each number is
            preceded by its length.
        encoding: 0 for JSON, 1 for binary.
        fields_at: In the binary encoding, the place of the length of all fields in the header.
    """

    def __init__(self, pieces: Sequence[bytes], encoding: int, fields_at: int = 0) -> None:
        assert len(pieces) == (4 if encoding else 5)
        self.text = b"".join(pieces)
        assert len(self.text) + 4 * 24 <= _HEAD_BYTES_MAX
        self.encoding = encoding
        self.fields_at = fields_at
        self.end0 = len(pieces[0])
        self.end1 = self.end0 + len(pieces[1])
        self.end2 = self.end1 + len(pieces[2])
        self.end3 = self.end2 + len(pieces[3])


class LogPart:
    """The bytes of one file of the log from position ``start`` on, to be read up to ``end``."""

    def __init__(self, segment: memoryview, start: int, end: int) -> None:
        assert 0 <= end - start <= len(segment)
        self.segment = segment
        self.start, self.end = start, end


class PullLane:
    """Splits pulls and writes answers. Belongs to the event loop.

    Attributes:
        end: The index after the frame that was split last.
        encoding: The encoding of its header; ``code`` is its request code.
        opaque: Its opaque number.
        queue_offset: The queue offset that it asks for.
        commit_offset: The offset that it commits, if its shape says that it commits one.
        signature: Its signature; empty if it has none, or if none was asked for.
        count: The number of records in the answer that was written last.
        passed: The number of queue entries that were looked at for it.
        size: The size of its records.
    """

    def __init__(self) -> None:
        self.shape = bytearray(_PLACE_BYTES + _HEADER_BYTES_MAX)
        self.head = bytearray(_HEAD_BYTES_MAX)
        self.end = self.encoding = self.opaque = self.queue_offset = self.commit_offset = 0
        self.code = self.count = self.passed = self.size = 0
        self.number = self.hint_queue = self.hint_commit = self.hint_opaque = self.hint_mark = 0
        self.signature = b""
        self.is_signed = False

    def split(self, data: Bytes, at: int, size: int, is_signed: bool = False) -> bytes | None:
        """Split a pull that starts at ``at`` into its shape and its numbers, which are attributes.

        Args:
            data: The buffer: ``bytes`` or a ``bytearray``.
            at: The start of the frame.
            size: The end of the bytes to read.
            is_signed: Whether to look for a signature.

        Returns:
            The shape; None if no complete pull of the usual form starts there.
        """
        p = data
        if at < 0 or size > len(data) or size - at < _PREFIX_BYTES + _BINARY_BYTES:
            return None
        header_at = at + _PREFIX_BYTES
        header_end = header_at + (p[at + 5] << 16 | p[at + 6] << 8 | p[at + 7])
        # A body is none of a pull's parts, so the header ends the frame.
        if header_end > size or header_end - header_at > _HEADER_BYTES_MAX:
            return None
        if at + 4 + _int(p, at) != header_end:
            return None
        encoding = p[at + 4]
        self.signature = b""
        self.is_signed = is_signed
        if encoding == 0:
            shape = self._split_json(p, header_at, header_end)
        elif encoding == 1:
            shape = self._split_binary(p, header_at, header_end)
        else:
            return None
        if shape is not None:
            self.end = header_end
            self.encoding = encoding
        return shape

    def _split_json(self, p: Bytes, at: int, end: int) -> bytes | None:
        self.code = 11 if _is_same(p, at, b'{"code":11,', 11) else 361
        if self.code == 361 and not _is_same(p, at, b'{"code":361,', 12):
            return None
        queue = _find(p, at, end, b'"queueOffset":"', 15, at + self.hint_queue)
        commit = _find(p, at, end, b'"commitOffset":"', 16, at + self.hint_commit)
        opaque = _find(p, at, end, b'"opaque":', 9, at + self.hint_opaque)
        if queue < 0 or commit < 0 or opaque < 0:
            return None
        self.hint_queue = queue - at
        self.hint_commit = commit - at
        self.hint_opaque = opaque - at
        queue_end = self._read_number(p, queue, end)
        self.queue_offset = self.number
        commit_end = self._read_number(p, commit, end)
        self.commit_offset = self.number
        opaque_end = self._read_number(p, opaque, end)
        self.opaque = self.number
        if queue_end < 0 or commit_end < 0 or opaque_end < 0 or self.opaque > _INT_MAX:
            return None
        if queue_end == end or p[queue_end] != 34 or commit_end == end or p[commit_end] != 34:
            return None
        mark = 0
        if self.is_signed:
            mark = _find(p, at, end, b'"Signature":"', 13, at + self.hint_mark)
            if mark < 0:
                return None
            self.hint_mark = mark - at
            if end - mark <= _SIGNATURE_BYTES or p[mark + _SIGNATURE_BYTES] != 34:
                return None
            if not self._take_signature(p, mark):
                return None
        return self._shape_of(
            p, at, end, queue, queue_end, commit, commit_end, opaque, opaque_end, 0, mark
        )

    def _split_binary(self, p: Bytes, at: int, end: int) -> bytes | None:
        self.code = code = p[at] << 8 | p[at + 1]
        if code != 11 and code != 361:
            return None
        if end - at < _BINARY_BYTES or _int(p, at + _FIELDS_AT) != end - at - _BINARY_BYTES:
            return None
        queue = _find(p, at, end, b"\0\x0bqueueOffset", 13, at + self.hint_queue)
        commit = _find(p, at, end, b"\0\x0ccommitOffset", 14, at + self.hint_commit)
        if queue < at + _BINARY_BYTES or commit < at + _BINARY_BYTES:
            return None
        self.hint_queue = queue - at
        self.hint_commit = commit - at
        if end - queue < 5 or end - commit < 5:
            return None
        queue_end = self._read_number(p, queue + 4, end)
        self.queue_offset = self.number
        commit_end = self._read_number(p, commit + 4, end)
        self.commit_offset = self.number
        if queue_end - queue - 4 != _int(p, queue) or commit_end - commit - 4 != _int(p, commit):
            return None
        opaque = at + _OPAQUE_AT
        fields = at + _FIELDS_AT
        self.opaque = _int(p, opaque)
        mark = 0
        if self.is_signed:
            mark = _find(p, at, end, b"\0\x09Signature", 11, at + self.hint_mark)
            if mark < at + _BINARY_BYTES or end - mark < 4 + _SIGNATURE_BYTES:
                return None
            self.hint_mark = mark - at
            if _int(p, mark) != _SIGNATURE_BYTES or not self._take_signature(p, mark + 4):
                return None
        return self._shape_of(
            p, at, end, queue, queue_end, commit, commit_end, opaque, opaque + 4, fields, mark
        )

    def _take_signature(self, p: Bytes, at: int) -> bool:
        """Keep the signature; False if it could end earlier than it does."""
        for i in range(at, at + _SIGNATURE_BYTES):
            if p[i] <= 32 or p[i] > 126 or p[i] == 34 or p[i] == 92:
                return False
        if cython.compiled:
            self.signature = cython.cast(cython.p_char, p + at)[:_SIGNATURE_BYTES]
        else:
            self.signature = bytes(p[at : at + _SIGNATURE_BYTES])
        return True

    def _shape_of(
        self,
        p: Bytes,
        at: int,
        end: int,
        queue: int,
        queue_end: int,
        commit: int,
        commit_end: int,
        opaque: int,
        opaque_end: int,
        fields: int,
        mark: int,
    ) -> bytes | None:
        """Return the header without the numbers, after the places at which they were.

        Each number is given by its start and end, an offset in a binary header by the start of its
        length. ``fields`` is the place of the length of all fields in a binary header, else 0.
        ``mark`` is the start of the signature, or of its length; 0 if there is none.
        """
        to = _PLACE_BYTES
        while True:
            # The first number from here on.
            cut = end
            after = end
            which = 0
            if at <= queue and queue < cut:
                cut = queue
                after = queue_end
                which = 1
            if at <= commit and commit < cut:
                cut = commit
                after = commit_end
                which = 2
            if at <= opaque and opaque < cut:
                cut = opaque
                after = opaque_end
                which = 3
            if at <= fields and fields < cut:
                cut = fields
                after = fields + 4
                which = 4
            if mark and at <= mark and mark < cut:
                cut = mark
                after = (mark + 4 if fields else mark) + _SIGNATURE_BYTES
                which = 5
            if cython.compiled:
                memcpy(cython.address(self.shape[to]), p + at, cut - at)
            else:
                self.shape[to : to + cut - at] = p[at:cut]
            to += cut - at
            if not which:
                break
            self.shape[2 * which - 2] = to >> 8
            self.shape[2 * which - 1] = to & 255
            at = after
        if not fields:
            self.shape[6] = self.shape[7] = 0
        if not mark:
            self.shape[8] = self.shape[9] = 0
        if cython.compiled:
            shape: bytes = cython.cast(cython.p_char, cython.address(self.shape[0]))[:to]
        else:
            shape = bytes(self.shape[:to])
        return shape

    def _read_number(self, p: Bytes, at: int, end: int) -> int:
        """Read a decimal number into ``number``; returns the index after it, or -1."""
        begin = at
        number = 0
        while at < end and p[at] >= 48 and p[at] <= 57:
            if at - begin == _DIGITS_MAX:
                return -1
            number = number * 10 + (p[at] - 48)
            at += 1
        if at == begin or (p[begin] == 48 and at - begin > 1):
            return -1
        self.number = number
        return at

    def answer(
        self,
        head: AnswerHead,
        units: bytes,
        wanted: AbstractSet[int],
        count_max: int,
        bytes_max: int,
        part: LogPart,
        first: int,
        queue_end: int,
    ) -> bytes | None:
        """Return the complete answer to the pull that was split last.

        Entries are chosen as in ``kernel.queue_scan``; ``count``, ``passed`` and ``size`` are set.

        Args:
            head: The fixed parts of the answer.
            units: Complete queue entries from the pull's offset on; a torn one is ignored.
            wanted: Tags codes to keep; empty means every entry.
            count_max: Maximum number of chosen entries.
            bytes_max: Maximum bytes of chosen records; the first record may exceed it.
            part: The part of the log with the records.
            first: The queue's first offset.
            queue_end: The queue's end.

        Returns:
            The answer; None if no entry is chosen, if an entry has no record in this part of the
            log, or if the records are large.
        """
        p = units
        start, end = part.start, part.end
        whole = len(units) // _UNIT_BYTES
        takes_all = not wanted
        total = count = passed = 0
        while passed < whole:
            at = passed * _UNIT_BYTES
            if takes_all or _long(p, at + _TAGS_AT) in wanted:
                position = _long(p, at)
                size = _int(p, at + _SIZE_AT)
                if count >= count_max:
                    break
                if size <= 0 or position < start or size > end - position or size == _FILLER_SIZE:
                    return None
                if count and total + size > bytes_max:
                    break
                total += size
                count += 1
            passed += 1
        if not count or total > count * _COPIED_BYTES_MAX:
            return None
        head_bytes = self._write_head(head, self.queue_offset + passed, first, queue_end, total)
        if head_bytes + total > _FRAME_BYTES_MAX:
            return None
        self.count, self.passed, self.size = count, passed, total
        if not cython.compiled:
            return b"".join([self.head[:head_bytes], *_records(p, passed, wanted, part)])
        answer: bytes = PyBytes_FromStringAndSize(cython.NULL, head_bytes + total)
        room = PyBytes_AS_STRING(answer)
        memcpy(room, cython.address(self.head[0]), head_bytes)
        filled = head_bytes
        ordinal = 0
        while ordinal < passed:
            at = ordinal * _UNIT_BYTES
            if takes_all or _long(p, at + _TAGS_AT) in wanted:
                if takes_all and ordinal + _AHEAD < passed:
                    ahead = at + _AHEAD * _UNIT_BYTES
                    size = _int(p, ahead + _SIZE_AT)
                    prefetch(cython.address(part.segment[_long(p, ahead) - start]), size)
                size = _int(p, at + _SIZE_AT)
                memcpy(room + filled, cython.address(part.segment[_long(p, at) - start]), size)
                filled += size
            ordinal += 1
        return answer

    def _write_head(
        self, head: AnswerHead, next_offset: int, first: int, queue_end: int, body_bytes: int
    ) -> int:
        """Write prefix and header of an answer into ``head``; returns their size."""
        is_binary = head.encoding
        to = self._put(self._copy(head, 0, head.end0, _PREFIX_BYTES), next_offset, is_binary)
        to = self._copy(head, head.end0, head.end1, to)
        to = self._put(to, first, is_binary)
        to = self._copy(head, head.end1, head.end2, to)
        to = self._put(to, queue_end, is_binary)
        to = self._copy(head, head.end2, head.end3, to)
        if is_binary:
            self._put_int(_PREFIX_BYTES + _OPAQUE_AT, self.opaque)
            fields_at = _PREFIX_BYTES + head.fields_at
            self._put_int(fields_at, to - fields_at - 4)
        else:
            to = self._put(to, self.opaque, 0)
            to = self._copy(head, head.end3, len(head.text), to)
        self._put_int(0, to - 4 + body_bytes)
        self._put_int(4, is_binary << 24 | (to - _PREFIX_BYTES))
        return to

    def _copy(self, head: AnswerHead, at: int, end: int, to: int) -> int:
        """Copy a fixed part to ``to``; returns the index after it."""
        if cython.compiled:
            memcpy(cython.address(self.head[to]), PyBytes_AS_STRING(head.text) + at, end - at)
        else:
            self.head[to : to + end - at] = head.text[at:end]
        return to + end - at

    def _put(self, to: int, number: int, is_binary: int) -> int:
        """Write a number that is not negative, after its length if the encoding is binary."""
        at = to + 4 if is_binary else to
        digits = 1
        rest = number // 10
        while rest:
            rest //= 10
            digits += 1
        i = at + digits
        while i > at:
            i -= 1
            self.head[i] = 48 + number % 10
            number //= 10
        if is_binary:
            self._put_int(to, digits)
        return at + digits

    def _put_int(self, to: int, number: int) -> None:
        """Write 32 bits."""
        self.head[to] = number >> 24 & 255
        self.head[to + 1] = number >> 16 & 255
        self.head[to + 2] = number >> 8 & 255
        self.head[to + 3] = number & 255


def _records(
    units: bytes, passed: int, wanted: AbstractSet[int], part: LogPart
) -> list[memoryview]:
    """Return the records of the wanted entries among the first ``passed``."""
    records = []
    for at in range(0, passed * _UNIT_BYTES, _UNIT_BYTES):
        if not wanted or _long(units, at + _TAGS_AT) in wanted:
            begin = _long(units, at) - part.start
            records.append(part.segment[begin : begin + _int(units, at + _SIZE_AT)])
    return records


def _find(p: Bytes, at: int, end: int, text: bytes, size: int, hint: int) -> int:
    """Return the index after a text, at the hint or else the first one; -1 if there is none."""
    if hint - size >= at and hint <= end and _is_same(p, hint - size, text, size):
        return hint
    if not cython.compiled:
        found = p.find(text, at, end)
        return int(found) + size if found >= 0 else -1
    last = end - size
    while at <= last:
        if p[at] == text[0] and memcmp(p + at, text, size) == 0:
            return at + size
        at += 1
    return -1


def _is_same(p: Bytes, at: int, other: bytes, size: int) -> bool:
    """Tell whether bytes are those of ``other``."""
    if not cython.compiled:
        return bool(p[at : at + size] == other)
    is_same: bool = memcmp(p + at, other, size) == 0
    return is_same


def _int(p: Bytes, at: int) -> int:
    """Read a signed 32-bit number."""
    number: int = p[at] << 8 | p[at + 1]
    number = number << 8 | p[at + 2]
    number = number << 8 | p[at + 3]
    return number - (number >> 31 << 32)


def _long(p: Bytes, at: int) -> int:
    """Read a signed 64-bit number."""
    number: int = _int(p, at)
    for i in range(at + 4, at + 8):
        number = number * 256 + p[i]
    return number
