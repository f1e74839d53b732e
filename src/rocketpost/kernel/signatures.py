# cython: initializedcheck=False
"""Signatures of sends, checked where the frames are, many at a time.

A signature is Base64(HMAC-SHA1(secret, text + body)). The text consists of the values of all header
fields but the signature itself, in the order of their names (``access.signature``).

    Signer       a user's secret, as the two hash states that an HMAC begins with, and the topics
                that the user may send to
    SignedText  the text of one header, with gaps for the values that change from send to send
    Verifier    up to sixteen texts with their bodies, and the check of all of them

The hash of one text takes longer than everything else that is done for a message, because each step
waits for the one before. So the lane takes several sends before it checks their signatures at once
(``send_lane``): sixteen side by side with AVX-512, or four with the SHA instructions of x86-64,
which take a third and a half of the time. Other processors hash one text after the other.

**Invariants:** the text is that of ``access.signature``, for headers that ``send_headers`` reads
and whose values are all strings; for others there is none. The time of a check does not depend on
the signatures. Secrets and states are in no attribute that Python can read.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from binascii import b2a_base64
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import (
        PyBytes_AS_STRING,
        Send,
        memcmp,
        memcpy,
        sha1_begin,
        sha1_digest,
        sha1_jobs,
        sha1_prepare,
        sha1_verify,
        sha1_ways,
    )

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

GROUP_MAX = 16
"""Most sends whose signatures are checked at once."""
SIGNATURE_BYTES = 28

_GROUP_MAX = GROUP_MAX
_SIGNATURE_BYTES = SIGNATURE_BYTES
_BLOCK_BYTES = 64
_DIGEST_BYTES = 20
_TEXT_BYTES = 4096
_SLOT_BYTES = _TEXT_BYTES + _BLOCK_BYTES
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))

# Fields, by the numbers of their letters (``send_headers``); 14 is the access key.
_FIELDS = 15
_QUEUE_ID = 4
_BORN_MS = 6
_PROPERTIES = 8
_LETTERS_ORDER = b"\x0e\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d"
_NAMES_ORDER = b"\x0e\x0c\x0d\x06\x02\x03\x07\x0b\x00\x08\x04\x09\x05\x01\x0a"
"""The order of the long names: AccessKey, batch, bname, bornTimestamp, defaultTopic, ..."""

_WAYS = sha1_ways() if cython.compiled else 1
WAYS = _WAYS
"""Most texts that this processor hashes at a time."""


class Signer:
    """A user who sends signed requests. Belongs to the event loop.

    Args:
        access_key: The name of the user.
        secret: The user's secret.
    """

    def __init__(self, access_key: bytes, secret: bytes) -> None:
        assert access_key
        self.access_key = access_key
        if cython.compiled:
            key: bytes = Verifier(1).digests([secret])[0] if len(secret) > _BLOCK_BYTES else secret
            key = key.ljust(_BLOCK_BYTES, b"\0")
            block = key.translate(_INNER)
            sha1_begin(self.inner, cython.cast(cython.p_uchar, PyBytes_AS_STRING(block)))
            block = key.translate(_OUTER)
            sha1_begin(self.outer, cython.cast(cython.p_uchar, PyBytes_AS_STRING(block)))
        else:
            self.secret = secret
            self.inner: Any = None
            self.outer: Any = None
            self.job: Any = None
            self.room: Any = None
        self.topics = bytearray(64)
        self.topic_count = 0
        self.epoch = -1

    def allow(self, topic: int, epoch: int) -> None:
        """Let the user send to a topic.

        Args:
            topic: The number of the topic (``send_topics``).
            epoch: The number of times that topics were given new numbers.
        """
        assert topic >= 0
        if epoch != self.epoch:
            self.epoch = epoch
            self.topic_count = 0
        while topic >= len(self.topics):
            self.topics = bytearray(self.topics) + bytearray(len(self.topics))
        for i in range(self.topic_count, topic):
            self.topics[i] = 0
        self.topics[topic] = 1
        self.topic_count = max(self.topic_count, topic + 1)

    def may_send(self, topic: int, epoch: int) -> bool:
        """Tell whether the user may send to a topic."""
        return epoch == self.epoch and topic < self.topic_count and self.topics[topic] != 0

    def is_sender(self, p: Bytes, at: int, end: int) -> bool:
        """Tell whether bytes are the name of the user."""
        if end - at != len(self.access_key):
            return False
        if not cython.compiled:
            return bool(p[at:end] == self.access_key)
        is_same: bool = memcmp(p + at, PyBytes_AS_STRING(self.access_key), end - at) == 0
        return is_same

    def is_signed(self, text: bytes, signature: bytes) -> bool:
        """Tell whether the user has signed a text; it is never longer than a header."""
        if len(signature) != _SIGNATURE_BYTES:
            return False
        if not cython.compiled:
            return hmac.compare_digest(_sign(self.secret, text), signature)
        sha1_prepare(
            cython.address(self.job),
            self.room,
            0,
            cython.cast(cython.p_uchar, PyBytes_AS_STRING(text)),
            len(text),
            self.inner,
            _BLOCK_BYTES,
        )
        self.job.signature = cython.cast(cython.p_uchar, PyBytes_AS_STRING(signature))
        return bool(sha1_verify(cython.address(self.job), 1, self.outer, _WAYS))


class SignedText:
    """The text that signatures of a header cover, with gaps for the values that change.

    Attributes:
        fixed: The values that do not change, one after the other.
        ends: The end of each part of them that is followed by a gap, and the end of the last.
        kinds: The field whose value belongs in each gap.
    """

    def __init__(self) -> None:
        self.fixed = bytearray(_TEXT_BYTES)
        self.ends = array("q", bytes(32))
        self.kinds = array("q", bytes(24))
        self.gaps = 0
        self.is_known = False

    def learn(self, p: Bytes, send: Send) -> None:
        """Take the text of a header that was read in full; there is none if it is unusual."""
        self.is_known = False
        self.gaps = 0
        if send.has_bare:
            return
        order = _NAMES_ORDER if send.has_long_names else _LETTERS_ORDER
        size = 0
        for i in range(_FIELDS):
            field = order[i]
            if not send.fields_seen >> field & 1:
                continue
            if field in (_QUEUE_ID, _BORN_MS, _PROPERTIES):
                self.ends[self.gaps] = size
                self.kinds[self.gaps] = field
                self.gaps += 1
                continue
            at = send.values_at[field]
            end = send.value_ends[field]
            if end - at > _TEXT_BYTES - size:
                return
            if cython.compiled:
                memcpy(cython.address(self.fixed[0]) + size, p + at, end - at)
            else:
                self.fixed[size : size + end - at] = p[at:end]
            size += end - at
        self.ends[self.gaps] = size
        self.is_known = True

    def write(self, out: Room, p: Bytes, text: Bytes, send: Send) -> int:
        """Write the text of a send; returns its size, or -1 if there is none or it is long.

        Args:
            out: Receives the text.
            p: The buffer with the header.
            text: The buffer with the properties without escapes; ``p`` if they had none.
            send: The places of the values.
        """
        if not self.is_known:
            return -1
        size = begin = 0
        for i in range(self.gaps + 1):
            end = self.ends[i]
            if end - begin > _TEXT_BYTES - size:
                return -1
            if cython.compiled:
                memcpy(out + size, cython.address(self.fixed[0]) + begin, end - begin)
            else:
                out[size : size + end - begin] = self.fixed[begin:end]
            size += end - begin
            begin = end
            if i == self.gaps:
                break
            kind = self.kinds[i]
            source = p
            if kind == _QUEUE_ID:
                at = send.queue_at
                end = send.queue_end
            elif kind == _BORN_MS:
                at = send.born_at
                end = send.born_end
            else:
                source = text
                at = send.text_at
                end = send.text_end
            if end - at > _TEXT_BYTES - size:
                return -1
            if cython.compiled:
                memcpy(out + size, source + at, end - at)
            else:
                out[size : size + end - at] = source[at:end]
            size += end - at
        return size


class Verifier:
    """Signed sends that wait for the check of their signatures. Belongs to the event loop.

    Attributes:
        count: The number of sends that wait.
        limit: The number at which they are to be checked. It is small after a wrong signature, so
            that a peer without the secret cannot have much work done in vain.
    """

    def __init__(self, ways: int = WAYS) -> None:
        self.texts = bytearray(_GROUP_MAX * _SLOT_BYTES)
        self.pairs: list[tuple[bytes, bytes]] = []
        self.ways = min(ways, _WAYS)
        if not cython.compiled:
            self.jobs: Any = None
            self.state: Any = None
            self.room: Any = None
            self.digest: Any = None
        self.count = 0
        self.limit = _GROUP_MAX

    def add(
        self,
        signer: Signer,
        signed: SignedText,
        p: Bytes,
        body_at: int,
        end: int,
        text: Bytes,
        send: Send,
    ) -> bool:
        """Add a send, whose frame must not change before the check; False if it is unusual.

        Args:
            signer: The user who must have signed it.
            signed: The text of its header.
            p: The buffer with the frame.
            body_at: The start of the body.
            end: The end of the body.
            text: The buffer with the properties without escapes.
            send: The places of the values.
        """
        if self.count >= _GROUP_MAX or send.mark_end - send.mark_at != _SIGNATURE_BYTES:
            return False
        if not signer.is_sender(p, send.key_at, send.key_end):
            return False
        if cython.compiled:
            out = cython.address(self.texts[self.count * _SLOT_BYTES])
        else:
            out = self.texts
        size = signed.write(out, p, text, send)
        if size < 0:
            return False
        if cython.compiled:
            sha1_prepare(
                cython.address(self.jobs[self.count]),
                out,
                size,
                p + body_at,
                end - body_at,
                signer.inner,
                _BLOCK_BYTES,
            )
            self.jobs[self.count].signature = p + send.mark_at
        else:
            signature = bytes(p[send.mark_at : send.mark_end])
            self.pairs.append((bytes(out[:size]) + bytes(p[body_at:end]), signature))
        self.count += 1
        return True

    def drop(self) -> None:
        """Forget the send that was added last."""
        self.count -= 1
        if not cython.compiled:
            self.pairs.pop()

    def check(self, signer: Signer) -> int:
        """Return how many of the sends, from the first on, are signed; then none is left."""
        good: int = 0
        if cython.compiled:
            good = sha1_verify(self.jobs, self.count, signer.outer, self.ways)
        else:
            for text, signature in self.pairs:
                if not hmac.compare_digest(_sign(signer.secret, text), signature):
                    break
                good += 1
            self.pairs.clear()
        self.limit = min(2 * self.limit, _GROUP_MAX) if good == self.count else 1
        self.count = 0
        return good

    def digests(self, texts: list[bytes]) -> list[bytes]:
        """Return the SHA-1 of each of up to sixteen texts, while no send waits."""
        assert self.count == 0
        assert len(texts) <= _GROUP_MAX
        if not cython.compiled:
            return [hashlib.new("sha1", text, usedforsecurity=False).digest() for text in texts]
        sha1_begin(self.state, cython.NULL)
        for i in range(len(texts)):
            text = texts[i]
            sha1_prepare(
                cython.address(self.jobs[i]),
                self.room,
                0,
                cython.cast(cython.p_uchar, PyBytes_AS_STRING(text)),
                len(text),
                self.state,
                0,
            )
        sha1_jobs(self.jobs, len(texts), self.ways)
        found: list[bytes] = []
        for i in range(len(texts)):
            sha1_digest(cython.address(self.jobs[i]), self.digest)
            text = cython.cast(cython.p_char, self.digest)[:_DIGEST_BYTES]
            found.append(text)
        return found


def _sign(secret: bytes, text: bytes) -> bytes:
    """Return the signature of a text, in the uncompiled build."""
    return b2a_base64(hmac.digest(secret, text, "sha1"), newline=False)
