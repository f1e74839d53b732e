# cython: initializedcheck=False
"""The send lane: frames in; records, rows, key hashes and replies out.

No object is made for a message. The lane takes whole frames from the front of a buffer as long as
they are plain sends, and stops at the first that is not. The caller serves that frame the ordinary
way (``codec.command``, ``broker.send``, ``store.message_store``); then the lane continues.

    taken                                            left to the ordinary way
    -----------------------------------------------  ---------------------------------------------
    SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH        every other request; responses
    JSON and binary headers of the common forms      other forms (``send_headers``)
    oneway sends and those with an answer            other flags
    topics in the table (``broker.plain_topics``)    new topics, retry topics, priorities, ...
    queues with a slot                               the first message of a queue; no queue chosen
    plain properties (``send_properties``)           delayed, timed, transactional, numbered;
                                                     no unique key; a name given twice; not UTF-8
    bodies and batches within the limits             empty, too long or malformed ones
    senders and brokers with IPv4 or IPv6
    with access control on: sends that are signed    unsigned or wrongly signed ones; other users;
    by the signer of the call, to topics that it      topics that it may not send to, or not yet;
    may send to                                      long texts

What finds no room is left as well: in the segment, in the buffers of the wave or among the replies.

**Invariants:** the bytes are those of the ordinary way. A frame is checked as a whole before
anything counts as taken, and a batch is taken as a whole. Nothing is read outside a frame. Replies
are only handed to the caller, who keeps them until the messages are safe.

Signatures are checked for several sends at once (``signatures``), after their records and replies
were written, and always before :meth:`Lane.take` returns. At the first one that is wrong, its
send and all later ones are taken back: buffers, offsets and counts are as if they had not been
offered. With a signer, no frame is taken whose signature was not found right in the same call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.send_headers import may_be_send, read_binary, read_json
    from rocketpost.kernel.send_properties import (
        entry_text,
        is_nothing_shared,
        read_properties,
    )
    from rocketpost.kernel.send_replies import reply_bytes_max, write_reply
    from rocketpost.kernel.uncompiled import Send
from rocketpost.kernel.send_records import RecordWriter
from rocketpost.kernel.send_replies import ends_of
from rocketpost.kernel.send_text import PropertyShape, SendShape
from rocketpost.kernel.send_topics import TopicTable
from rocketpost.kernel.signatures import SignedText, Signer, Verifier

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""

IS_COMPILED = bool(cython.compiled)

MORE = 0
"""Everything was taken, up to a frame that is not complete."""
ODD = 1
"""The next frame is not plain."""
FULL = 2
"""The next frame finds no room."""
OTHER = 3
"""The next frame is a send of another code; it can be taken by the next call."""

REPLY_BYTES = 2 * 1024 * 1024
"""Size of the buffer of replies; the reply to the longest batch takes less than half of it."""

_REPLY_BYTES = REPLY_BYTES
_MORE, _ODD, _FULL, _OTHER = MORE, ODD, FULL, OTHER
_SCRATCH_BYTES = 64 * 1024
_FRAME_BYTES_MAX = 16 * 1024 * 1024
_PREFIX_BYTES = 8
_PEEK_BYTES = 24
_ENTRY_BYTES = 22
_ITEMS_MAX = 16_384
_SAVED = 6
_ROW = 5
_ROW_SLOT = 3
_ROW_OFFSET = 4


class Lane:
    """Turns frames into what the store and the senders get. Belongs to the event loop.

    Args:
        records: Receives records. Like the next two, it is never resized.
        rows: Receives rows (``send_records``).
        keys: Receives keys.

    Attributes:
        topics: The topics whose messages are taken; none at first.
        writer: Writes the records; its ``begin`` sets where they go.
    """

    def __init__(self, records: bytearray, rows: array[int], keys: array[int]) -> None:
        self.topics = TopicTable(array("q", [0]))
        self.writer = RecordWriter(records, rows, keys)
        self.replies = bytearray(REPLY_BYTES)
        self.reply_at = 0
        self.scratch = bytearray(_SCRATCH_BYTES)
        self._forget_shapes()
        if not cython.compiled:
            self.send = Send()
        self.verifier = Verifier()
        self.spare_text = SignedText()
        self.saved = array("q", bytes(8 * _SAVED * 16))
        self.signer: Any = None
        self.at = self.verdict = self.frames = self.answers = self.encoding = self.code = 0
        self.is_configured = False

    def configure(
        self,
        *,
        special: bytes,
        added: bytes,
        body_max: int,
        properties_max: int,
        store_host: bytes,
        prefix: bytes,
        json_pieces: Sequence[bytes],
        binary_pieces: Sequence[bytes],
    ) -> None:
        """Set what is the same for all messages.

        Args:
            special: Names of properties that are not plain, each after a byte with its length.
            added: The properties that the broker adds.
            body_max: The maximum size of a body, or of the body of a batch.
            properties_max: The maximum size of properties, with those added.
            store_host: The broker's address in the form of a record.
            prefix: The first part of message ids.
            json_pieces: The fixed parts of a JSON response (``send_replies``).
            binary_pieces: The same for the binary encoding.
        """
        assert len(json_pieces) == 6
        assert len(binary_pieces) == 5
        self.writer.configure(added, properties_max, store_host)
        self.special = special + b"\0"  # never empty, so that it has an address
        self.special_bytes = len(special)
        self.body_max = body_max
        self.prefix = prefix
        self.json_pieces = b"".join(json_pieces)
        self.json_ends = ends_of(json_pieces)
        self.binary_pieces = b"".join(binary_pieces)
        self.binary_ends = ends_of(binary_pieces)
        self._forget_shapes()  # what they found plain may not be so any more
        self.is_configured = True

    def _forget_shapes(self) -> None:
        """Know no header and no properties."""
        self.json_shape = SendShape()
        self.binary_shape = SendShape()
        self.item_shape = PropertyShape()

    def is_offered(self, data: Bytes, at: int, end: int) -> bool:
        """Tell whether a send may start at ``at``, by the first bytes alone."""
        if at < 0 or end > len(data) or end - at < _PEEK_BYTES:
            return False
        return bool(may_be_send(data, at))

    def take(
        self, data: Bytes, at: int, end: int, born_host: bytes, signer: Signer | None = None
    ) -> bytes:
        """Take frames until one is not complete, not plain, of another code, or finds no room.

        Records, rows and keys go where ``writer`` was told to begin, or after those of the last
        call. The results are in attributes: ``at`` is the index of the first frame not taken,
        ``verdict`` says why; ``frames`` and ``answers`` are the numbers of frames taken and of
        replies, ``code`` is that of all of them, ``encoding`` that of the last.

        Args:
            data: The buffer with frames: ``bytes`` or a ``bytearray``.
            at: The start of the first frame.
            end: The end of the bytes to read.
            born_host: The sender's address in the form of a record.
            signer: The user who must have signed each send; None if access control is off.

        Returns:
            The replies to the frames taken, to be sent when their messages are safe.
        """
        assert self.is_configured
        assert 0 <= at <= end <= len(data)
        self.writer.set_sender(born_host)
        self.reply_at = self.frames = self.answers = 0
        send = cython.address(self.send) if cython.compiled else self.send
        self.signer = signer
        self.verdict = self._take_frames(data, at, end, send)
        if signer is not None and not self._settle():
            self.verdict = _ODD
        self.signer = None
        if cython.compiled:
            replies: bytes = cython.cast(cython.p_char, cython.address(self.replies[0]))[
                : self.reply_at
            ]
        else:
            replies = bytes(self.replies[: self.reply_at])
        return replies

    def _take_frames(self, p: Bytes, at: int, size: int, send: Send) -> int:
        """Take frames; see :meth:`take`. Returns the verdict."""
        scratch = cython.address(self.scratch[0]) if cython.compiled else self.scratch
        self.at = at
        while size - at >= _PREFIX_BYTES:
            end = at + 4 + _int(p, at)
            header_at = at + _PREFIX_BYTES
            header_end = header_at + (p[at + 5] << 16 | p[at + 6] << 8 | p[at + 7])
            if header_end > end or end > at + _FRAME_BYTES_MAX:
                return _ODD
            if end > size:
                return _MORE
            encoding = p[at + 4]
            if encoding > 1:
                return _ODD
            shape = self.binary_shape if encoding else self.json_shape
            is_by_shape = shape.read(
                p, header_at, header_end, encoding, scratch, _SCRATCH_BYTES, send
            )
            if not is_by_shape:
                if encoding:
                    is_plain = read_binary(p, header_at, header_end, send)
                else:
                    is_plain = read_json(p, header_at, header_end, scratch, _SCRATCH_BYTES, send)
                if not is_plain:
                    return _ODD
                send.is_known = 0
                shape.learn(p, header_at, header_end, send)
            if self.frames and send.code != self.code:
                return _OTHER
            self.code = send.code
            if self.signer is not None:
                if not is_by_shape:
                    self.spare_text.learn(p, send)
                signed = shape.signed if is_by_shape else self.spare_text
                if not self._promise(p, at, header_end, end, signed, send):
                    return _ODD
            verdict = self._take_send(p, header_end, end, send, encoding)
            if verdict != _MORE:
                if self.signer is not None:
                    self.verifier.drop()
                return verdict
            self.encoding = encoding
            self.frames += 1
            at = end
            self.at = at
            if self.signer is None:
                continue
            if self.verifier.count >= self.verifier.limit and not self._settle():
                return _ODD
        return _MORE

    def _promise(
        self, p: Bytes, at: int, body_at: int, end: int, signed: SignedText, send: Send
    ) -> bool:
        """Note a send whose signature is to be checked, and what to go back to if it is wrong."""
        verifier = self.verifier
        text = p
        if send.is_unescaped:
            text = cython.address(self.scratch[0]) if cython.compiled else self.scratch
        i = _SAVED * verifier.count
        if not verifier.add(self.signer, signed, p, body_at, end, text, send):
            return False
        self.saved[i] = at
        self.saved[i + 1] = self.writer.row_at
        self.saved[i + 2] = self.writer.key_at
        self.saved[i + 3] = self.reply_at
        self.saved[i + 4] = self.answers
        self.saved[i + 5] = self.encoding
        return True

    def _settle(self) -> bool:
        """Check all signatures that are to be checked; take back the first wrong send and later."""
        count = self.verifier.count
        if not count:
            return True
        good = self.verifier.check(self.signer)
        if good == count:
            return True
        i = _SAVED * good
        self.frames -= count - good
        self.at = self.saved[i]
        self.reply_at = self.saved[i + 3]
        self.answers = self.saved[i + 4]
        self.encoding = self.saved[i + 5]
        first = self.saved[i + 1]
        row = self.writer.row_at
        while row > first:
            row -= 1
            slot = self.writer.rows[row * _ROW + _ROW_SLOT]
            self.topics.offsets[slot] = self.writer.rows[row * _ROW + _ROW_OFFSET]
        self.writer.undo(first, self.saved[i + 2])
        return False

    def _take_send(self, p: Bytes, body_at: int, end: int, send: Send, encoding: int) -> int:
        """Take one send whose header was read; returns a verdict."""
        topics = self.topics
        writer = self.writer
        topic = topics.find(p, send.topic_at, send.topic_end)
        if topic < 0 or end - body_at > self.body_max:
            return _ODD
        if self.signer is not None and not self.signer.may_send(topic, topics.epoch):
            return _ODD
        slot = topics.slot_of(topic, send.queue_id)
        if slot < 0:
            return _ODD
        text = p
        if send.is_unescaped:
            text = cython.address(self.scratch[0]) if cython.compiled else self.scratch
        if send.is_batch:
            return self._take_batch(p, body_at, end, text, topic, slot, send, encoding)
        if not send.is_known:
            if not self._is_plain(text, send.text_at, send.text_end, send):
                return _ODD
            shape = self.binary_shape if encoding else self.json_shape
            shape.properties.learn(
                p, send.raw_at, send.raw_end, text, send.text_at, send.text_end, send
            )
        if send.is_sharded and not topics.takes_sharded(topic):
            return _ODD
        row = writer.row_at
        key = writer.key_at
        queue_offset = topics.offsets[slot]
        verdict = writer.append(
            p,
            body_at,
            end - body_at,
            text,
            send.text_at,
            send.text_end,
            send.message_flag,
            topics,
            topic,
            slot,
            queue_offset,
            send,
        )
        if verdict == _MORE and not self._answer(text, row, 1, queue_offset, send, encoding):
            verdict = _FULL
        if verdict != _MORE:
            writer.undo(row, key)
            return verdict
        topics.offsets[slot] = queue_offset + 1
        return _MORE

    def _take_batch(
        self,
        p: Bytes,
        at: int,
        end: int,
        shared: Bytes,
        topic: int,
        slot: int,
        send: Send,
        encoding: int,
    ) -> int:
        """Take all messages of a batch, or none; returns a verdict. Layout: ``codec.batch``."""
        if at == end or not is_nothing_shared(shared, send.text_at, send.text_end):
            return _ODD
        writer = self.writer
        row = writer.row_at
        key = writer.key_at
        queue_offset = self.topics.offsets[slot]
        count = 0
        unique_at = unique_end = 0
        shape = self.item_shape
        scratch = cython.address(self.scratch[0]) if cython.compiled else self.scratch
        verdict = _MORE
        while at < end and verdict == _MORE:
            text_at = entry_text(p, at, end)
            if text_at < 0 or count == _ITEMS_MAX:
                verdict = _ODD
                break
            text_end = at + _int(p, at)
            if not shape.read(p, text_at, text_end, scratch, send):
                if not self._is_plain(p, text_at, text_end, send):
                    verdict = _ODD
                    break
                shape.learn(p, text_at, text_end, p, text_at, text_end, send)
            if send.is_sharded and not self.topics.takes_sharded(topic):
                verdict = _ODD
                break
            if not count:
                unique_at = send.unique_at
                unique_end = send.unique_end
            verdict = writer.append(
                p,
                at + 20,
                text_at - at - _ENTRY_BYTES,
                p,
                text_at,
                text_end,
                _int(p, at + 12),
                self.topics,
                topic,
                slot,
                queue_offset + count,
                send,
            )
            count += 1
            at = text_end
        if verdict == _MORE:
            send.unique_at = unique_at
            send.unique_end = unique_end
            if not self._answer(p, row, count, queue_offset, send, encoding):
                verdict = _FULL
        if verdict != _MORE:
            writer.undo(row, key)
            return verdict
        self.topics.offsets[slot] = queue_offset + count
        return _MORE

    def _is_plain(self, text: Bytes, at: int, end: int, send: Send) -> bool:
        """Read properties; tell whether they are plain."""
        special = cython.address(self.special[0]) if cython.compiled else self.special
        return bool(read_properties(text, at, end, special, self.special_bytes, send))

    def _answer(
        self, text: Bytes, row: int, count: int, queue_offset: int, send: Send, encoding: int
    ) -> bool:
        """Write the reply, unless the send wants none; False if there is no room."""
        if send.flag:
            return True
        pieces_bytes = len(self.binary_pieces) if encoding else len(self.json_pieces)
        size_max = reply_bytes_max(
            pieces_bytes, len(self.prefix), count, send.unique_end - send.unique_at
        )
        if size_max > _REPLY_BYTES - self.reply_at:
            return False
        if cython.compiled:
            out = cython.address(self.replies[0])
            prefix = cython.address(self.prefix[0])
            rows = cython.address(self.writer.rows[0])
            if encoding:
                pieces = cython.address(self.binary_pieces[0])
                ends = cython.address(self.binary_ends[0])
            else:
                pieces = cython.address(self.json_pieces[0])
                ends = cython.address(self.json_ends[0])
        else:
            out = self.replies
            prefix = self.prefix
            rows = self.writer.rows
            pieces = self.binary_pieces if encoding else self.json_pieces
            ends = self.binary_ends if encoding else self.json_ends
        self.reply_at = write_reply(
            out,
            self.reply_at,
            pieces,
            ends,
            prefix,
            len(self.prefix),
            rows,
            row,
            count,
            queue_offset,
            text,
            send,
            encoding,
        )
        self.answers += 1
        return True


def _int(p: Bytes, at: int) -> int:
    """Read a signed 32-bit number."""
    number: int = p[at] << 8 | p[at + 1]
    number = number << 8 | p[at + 2]
    number = number << 8 | p[at + 3]
    return number - (number >> 31 << 32)
