"""The frames by which two brokers log in to each other, before the log or messages of a group.

    magic   8 bytes   b"\\xf2RPPEER1"
    size    uint16    bytes of the text, at most 1024; big-endian
    text    ...       JSON

Four frames are exchanged: an introduction of the broker that connects, a challenge, its proof, and
a verdict with the proof of the other one. A challenge or a verdict with a problem is the last frame
(``access.peer_proof`` has the proofs). Nothing else is sent until the verdict has arrived.

The magic is a negative number to a master of RocketMQ, which it takes for no position at all.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

import msgspec

from rocketpost.access.peer_proof import NONCE_BYTES
from rocketpost.errors import RemoteProtocolError

MAGIC: Final = b"\xf2RPPEER1"
TEXT_BYTES_MAX: Final = 1024
PROOF_BYTES: Final = 32
_HEAD: Final = Struct(">8sH")


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that connects."""

    user: str
    """The user that servers share."""
    purpose: str
    """What the connection is for."""
    nonce: bytes
    """A number that is used once."""

    def __post_init__(self) -> None:
        _check_size("nonce", self.nonce, NONCE_BYTES)


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the broker that listens, or the reason why it will not listen."""

    nonce: bytes = b""
    problem: str = ""

    def __post_init__(self) -> None:
        if not self.problem:
            _check_size("nonce", self.nonce, NONCE_BYTES)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of the broker that connects."""

    proof: bytes

    def __post_init__(self) -> None:
        _check_size("proof", self.proof, PROOF_BYTES)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of the broker that listens, or the reason why it refuses the other one."""

    proof: bytes = b""
    problem: str = ""

    def __post_init__(self) -> None:
        if not self.problem:
            _check_size("proof", self.proof, PROOF_BYTES)


Frame = Introduction | Challenge | Proof | Verdict
_Frame = TypeVar("_Frame", Introduction, Challenge, Proof, Verdict)


def encode_login(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    text = msgspec.json.encode(frame)
    assert len(text) <= TEXT_BYTES_MAX
    return _HEAD.pack(MAGIC, len(text)) + text


def take_login(kind: type[_Frame], received: bytearray) -> _Frame | None:
    """Remove a frame from what was received; None if it is not complete yet.

    Raises:
        RemoteProtocolError: The bytes begin with something else; drop the connection.
    """
    if bytes(received[: len(MAGIC)]) != MAGIC[: len(received)]:
        raise RemoteProtocolError("it does not log in")
    if len(received) < _HEAD.size:
        return None
    size = _HEAD.unpack_from(received)[1]
    if size > TEXT_BYTES_MAX:
        raise RemoteProtocolError(f"its login has {size} bytes")
    end = _HEAD.size + size
    if len(received) < end:
        return None
    try:
        frame = msgspec.json.decode(received[_HEAD.size : end], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"its login cannot be read: {error}") from None
    del received[:end]
    return frame


def _check_size(name: str, value: bytes, size: int) -> None:
    if len(value) != size:
        raise ValueError(f"the {name} must have {size} bytes")
