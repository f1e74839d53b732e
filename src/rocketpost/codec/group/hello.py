"""The introduction of one member of a group to another, before the messages of the group.

The member that connects sends a hello, and the other one answers. Both have the same frame:

    magic   8 bytes   b"RPGROUP1"
    size    uint32    bytes of the text, at most 4096; big-endian
    text    ...       JSON

Messages of the group follow, in one direction only, if the answer states no problem
(``codec.group.frames``). RocketMQ's DLedger peers begin with a frame of the remoting protocol, and
its slaves with a position or a handshake; the first bytes tell them apart.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

import msgspec

from rocketpost.errors import RemoteProtocolError

MAGIC: Final = b"RPGROUP1"
VERSION: Final = 1
TEXT_BYTES_MAX: Final = 4096
_HEAD: Final = Struct(">8sI")
_REMOTING: Final = Struct(">iI")


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a member's disk, which it tells the others."""

    term: int = 0
    """The newest term that it has saved."""
    end: int = 0
    """End of its log."""
    saves: int = 0
    """Number of times that it has saved its promises; it never falls, unless files are lost."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The member that connects, and what it expects of the other one."""

    version: int = VERSION
    """Version of the protocol."""
    group: str
    """Name of the group."""
    sender: str
    """Id of the member that connects."""
    receiver: str
    """Id that it expects the other one to have."""
    settings: dict[str, str]
    """Settings that must be equal on all members, by key."""
    address: str = ""
    """Address at which clients reach the sender."""
    history: History = History()
    """What the sender has on its disk."""
    remembered: History = History()
    """What the receiver must have on its disk, as far as the sender remembers."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a hello."""

    problem: str = ""
    """Reason why the connection is refused; empty if it is not."""
    address: str = ""
    """Address at which clients reach the member that answers."""
    history: History = History()
    """What the member that answers has on its disk."""
    remembered: History = History()
    """What the member that connects must have on its disk, as far as the other remembers."""


def encode_hello(value: Hello | Answer) -> bytes:
    """Return the bytes of a hello or an answer."""
    text = msgspec.json.encode(value)
    assert len(text) <= TEXT_BYTES_MAX
    return _HEAD.pack(MAGIC, len(text)) + text


_Value = TypeVar("_Value", Hello, Answer)


def take_hello(kind: type[_Value], received: bytearray) -> _Value | None:
    """Remove a hello or an answer from what was received; None if it is not complete yet.

    Raises:
        RemoteProtocolError: The bytes begin with something else; drop the connection.
    """
    if bytes(received[: len(MAGIC)]) != MAGIC[: len(received)]:
        if not received[0] and len(received) < len(MAGIC):
            return None  # perhaps of RocketMQ; the rest tells which program
        raise RemoteProtocolError(
            f"it does not speak the protocol of this group: {_name_stranger(bytes(received))}"
        )
    if len(received) < _HEAD.size:
        return None
    size = _HEAD.unpack_from(received)[1]
    if size > TEXT_BYTES_MAX:
        raise RemoteProtocolError(f"its introduction has {size} bytes")
    end = _HEAD.size + size
    if len(received) < end:
        return None
    try:
        value = msgspec.json.decode(received[_HEAD.size : end], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"its introduction cannot be read: {error}") from None
    del received[:end]
    return value


def _name_stranger(received: bytes) -> str:
    """Return what a peer is that begins with these bytes, as far as they tell."""
    if len(received) < _REMOTING.size or received[0]:
        return "only brokers of Rocketpost with the same dLegerGroup can join it"
    length, mark = _REMOTING.unpack_from(received)
    encoding, header = mark >> 24, mark & 0xFF_FFFF
    if encoding <= 1 and 0 < header <= length - 4:
        return (
            "it sends requests of RocketMQ, as a DLedger peer or a client does. A group has brokers"
            " of Rocketpost only; clients use listenPort"
        )
    return (
        "it is a slave that asks for the log, by RocketMQ's HA stream. Slaves use haListenPort, and"
        " members of a group have none"
    )


def why_refuse(
    hello: Hello, *, group: str, receiver: str, peers: frozenset[str], settings: dict[str, str]
) -> str:
    """Return the reason why a member's connection is refused; empty if it is accepted.

    Args:
        hello: The introduction.
        group: The group of the member that judges.
        receiver: The id of the member that judges.
        peers: The ids of the other members of the group.
        settings: The settings that must be equal on all members, by key.
    """
    if hello.version != VERSION:
        return f"member {receiver} speaks version {VERSION} of the protocol, not {hello.version}"
    if hello.group != group:
        return f"member {receiver} belongs to the group {group!r}, not to {hello.group!r}"
    if hello.receiver != receiver:
        return (
            f"this is member {receiver}, not {hello.receiver}; dLegerPeers of {hello.sender} has a"
            " wrong address"
        )
    if hello.sender not in peers:
        known = ", ".join(sorted(peers))
        return f"{hello.sender!r} is not a peer of member {receiver}; its peers are {known}"
    for key, value in settings.items():
        other = hello.settings.get(key)
        if other != value:
            return (
                f"{key} is {other or 'not set'} on {hello.sender} and {value} on {receiver}; it"
                " must be the same on all members"
            )
    return ""
