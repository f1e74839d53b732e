"""JSON bodies of popping: batches of acknowledgements, and the messages of the revive topic.

A *checkpoint* lists the messages of a queue that were popped together and until when they are
invisible; an *ack* lists those that are acknowledged. Names are single letters, as Java writes
them; like Java, we also read the long names in acknowledgements.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rocketpost.codec.bodies.leniency import fill
from rocketpost.codec.lenient_json import decode_any, encode
from rocketpost.codec.numbers import Int32, Int64
from rocketpost.errors import RemoteProtocolError

ACKS_MAX: Final = 4096
"""Maximum of checkpoints per batch."""


class OffsetBits:
    """A set of offsets, as bits: bit i of byte n stands for ``start`` + 8n + i."""

    __slots__ = ("_data", "_start")

    def __init__(self, start: int, data: bytes) -> None:
        self._start = start
        self._data = data

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int) or not 0 <= offset - self._start < 8 * len(self._data):
            return False
        at, bit = divmod(offset - self._start, 8)
        return bool(self._data[at] >> bit & 1)

    def __bool__(self) -> bool:
        return any(self._data)


class CheckpointBody(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Messages popped together. ``bm`` has a bit for each acknowledged one."""

    bm: Int32 = 0
    bn: str = ""
    c: str
    d: list[Int32] = []
    it: Int64
    n: Int32
    pt: Int64
    q: Int32
    revive_time: Int64 = msgspec.field(default=0, name="reviveTime")
    ro: Int64 = 0
    so: Int64
    t: str


class AckBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Acknowledged messages of a checkpoint: ``ao`` for one, ``aol`` for several."""

    ao: Int64 = -1
    aol: list[Int64] = []
    bn: str = ""
    c: str
    pt: Int64
    q: Int32
    so: Int64
    t: str

    @property
    def offsets(self) -> list[int]:
        """The offsets of the messages."""
        return list(self.aol) if self.aol else [self.ao]


class AckSet(msgspec.Struct, kw_only=True):
    """Part of BATCH_ACK_MESSAGE: messages of one checkpoint; ``b`` has bit i for ``so`` + i."""

    b: str = ""
    c: str
    it: Int64 = 0
    pt: Int64
    q: Int32
    r: str = "0"
    rq: Int32 = 0
    so: Int64
    t: str

    @property
    def offsets(self) -> OffsetBits:
        """The offsets of the messages.

        Raises:
            RemoteProtocolError: The bits are not base64.
        """
        try:
            data = base64.b64decode(self.b, validate=True)
        except (binascii.Error, ValueError):
            raise RemoteProtocolError("the bits of an acknowledgement are not base64") from None
        return OffsetBits(self.so, data)


class BatchAck(msgspec.Struct, rename="camel", kw_only=True):
    """The body of BATCH_ACK_MESSAGE (200151)."""

    acks: list[AckSet] = []
    broker_name: str = ""


_SHORT: Final = {
    "ackOffset": "ao",
    "ackOffsetList": "aol",
    "bitSet": "b",
    "brokerName": "bn",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "popTime": "pt",
    "queueId": "q",
    "retry": "r",
    "reviveQueueId": "rq",
    "startOffset": "so",
    "topic": "t",
}


def encode_bits(start: int, offsets: list[int]) -> str:
    """Return the bits of ``offsets`` in the form of an :class:`AckSet`."""
    bits = sum(1 << offset - start for offset in set(offsets))
    data = bits.to_bytes(bits.bit_length() // 8 + 1, "little").rstrip(b"\0")
    return base64.b64encode(data).decode()


def encode_checkpoint(body: CheckpointBody) -> bytes:
    """Return the text of a checkpoint."""
    return encode(body)


def decode_checkpoint(data: bytes | memoryview) -> CheckpointBody:
    """Read a checkpoint.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return fill(CheckpointBody, decode_any(data))


def encode_ack(body: AckBody) -> bytes:
    """Return the text of an ack."""
    return encode(body)


def decode_ack(data: bytes | memoryview) -> AckBody:
    """Read an ack.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return fill(AckBody, _shorten_names(decode_any(data)))


def encode_batch_ack(body: BatchAck) -> bytes:
    """Return the body of a batch of acknowledgements."""
    return encode(body)


def decode_batch_ack(data: bytes | memoryview) -> BatchAck:
    """Read a batch of acknowledgements.

    Raises:
        RemoteProtocolError: The body is malformed, or names too many checkpoints.
    """
    plain = decode_any(data)
    acks = plain.get("acks") if isinstance(plain, dict) else None
    if isinstance(acks, list):
        if len(acks) > ACKS_MAX:
            raise RemoteProtocolError(f"more than {ACKS_MAX} acknowledgements in one batch")
        plain["acks"] = [_shorten_names(each) for each in acks]
    return fill(BatchAck, plain)


def _shorten_names(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {_SHORT.get(name, name): item for name, item in value.items()}
