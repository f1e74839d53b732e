"""Pulls of one shape, and the fixed parts of their answers (``kernel.pull_lane``).

A shape is the header of a pull without its three numbers, and without the signature of a signed
one, after the places at which they were:

    queue offset      uint16
    committed offset  uint16
    opaque            uint16
    fields            uint16   of the length of all fields in a binary header; 0 in JSON
    signature         uint16   0 if it was not looked for
    text              ...      the rest of the header

Places are indexes into the shape. In a binary header, the lengths of the two offsets and of the
signature are left out as well.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rocketpost.access.signature import ACCESS_KEY, SIGNATURE, UNSIGNED_BY_OLD_CLIENTS
from rocketpost.codec.codes import LANGUAGE, VERSION, RequestCode
from rocketpost.codec.command import BINARY, JSON, RESPONSE, Command, decode_command
from rocketpost.codec.frames import Frame
from rocketpost.codec.header_binary import encode_binary_header
from rocketpost.codec.headers.message import PullMessage
from rocketpost.errors import Fault, RemoteProtocolError

_PLACES: Final = struct.Struct(">5H")
_INT: Final = struct.Struct(">i")
_BINARY_BYTES: Final = 21
_CODES: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_FOUND: Final = "FOUND"
_OFFSETS: Final = ("queueOffset", "commitOffset")
_SAMPLES: Final = ((7, 90_210, 5), (123_456_789_012_345_678, 0, 2**31 - 1))
"""Other numbers, with which a header must mean the same otherwise."""
_SIGNATURES: Final = ("A" * 28, "/" * 27 + "=")
"""Other signatures, which must be read as the signature."""


class PullShape(msgspec.Struct, frozen=True):
    """The meaning of every pull of one shape."""

    code: int
    encoding: int
    request: PullMessage
    """The first pull of the shape; others differ in ``queue_offset`` and ``commit_offset``."""
    user: str = ""
    """The user who must have signed a pull; empty if signatures were not looked for."""
    texts: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    """The text that a signature covers: before, between and after the committed offset and the
    queue offset."""


def read_shape(
    shape: bytes, encoding: int, *, queue_offset: int, commit_offset: int, opaque: int
) -> PullShape | None:
    """Return the meaning of a shape, given the numbers of one of its pulls.

    None unless every pull of this shape means the same, but for the numbers, when it is decoded in
    the ordinary way: the numbers are replaced to find that out.
    """
    numbers = (queue_offset, commit_offset, opaque)
    first = _decode(shape, encoding, numbers, _SIGNATURES[0])
    if first is None:
        return None
    command, request = first
    texts = None if _PLACES.unpack_from(shape)[4] == 0 else _signed_texts(command.fields)
    for sample, signature in zip(_SAMPLES, _SIGNATURES, strict=True):
        other = _decode(shape, encoding, sample, signature)
        if other is None or other[0].code != command.code:
            return None
        wanted = msgspec.structs.replace(request, queue_offset=sample[0], commit_offset=sample[1])
        if other[1] != wanted:
            return None
        if texts is not None and _signed_texts(other[0].fields) != texts:
            return None
    if texts is None:
        return PullShape(command.code, encoding, request)
    user = command.fields.get(ACCESS_KEY, "")
    # A client that adds fields after it signs is checked the ordinary way.
    if not user or UNSIGNED_BY_OLD_CLIENTS in command.fields:
        return None
    return PullShape(command.code, encoding, request, user, texts)


def _signed_texts(fields: Mapping[str, str]) -> tuple[bytes, bytes, bytes]:
    """Return the text that a signature covers (``access.signature``), without the two offsets."""
    parts: list[list[str]] = [[], [], []]
    part = 0
    for name in sorted(fields):
        if name in _OFFSETS:
            part += 1
        elif name != SIGNATURE:
            parts[part].append(fields[name])
    before, between, after = ("".join(texts).encode("utf-8", "replace") for texts in parts)
    return before, between, after


def rebuild_header(
    shape: bytes, encoding: int, numbers: tuple[int, int, int], signature: str = ""
) -> bytes:
    """Return the header of a shape with these numbers: queue offset, committed offset, opaque.

    Args:
        shape: The shape.
        encoding: The encoding of the header.
        numbers: The numbers.
        signature: The signature, if the shape has a place for it.
    """
    places = _PLACES.unpack_from(shape)
    texts = [str(number).encode() for number in numbers]
    if encoding == BINARY:
        texts[:2] = [_INT.pack(len(text)) + text for text in texts[:2]]
        texts[2] = _INT.pack(numbers[2])
    inserted = list(zip(places, texts, strict=False))
    if places[4]:
        text = signature.encode()
        inserted.append((places[4], _INT.pack(len(text)) + text if encoding == BINARY else text))
    if encoding == BINARY:
        added = sum(len(text) for _, text in inserted)
        length = len(shape) - _PLACES.size + added + 4 - _BINARY_BYTES
        inserted.append((places[3], _INT.pack(length)))
    parts, at = [], _PLACES.size
    for place, text in sorted(inserted):
        parts += [shape[at:place], text]
        at = place
    return b"".join([*parts, shape[at:]])


def _decode(
    shape: bytes, encoding: int, numbers: tuple[int, int, int], signature: str
) -> tuple[Command, PullMessage] | None:
    """Decode the header of a shape; None if it is not that of a pull with these values."""
    header = rebuild_header(shape, encoding, numbers, signature)
    try:
        command = decode_command(Frame(encoding, header, b""))
        request = command.read(PullMessage)
        fields = command.fields
    except (RemoteProtocolError, Fault):
        return None
    found = (request.queue_offset, request.commit_offset, command.opaque)
    is_pull = command.code in _CODES and not command.flag
    if _PLACES.unpack_from(shape)[4]:
        offsets = {name: str(number) for name, number in zip(_OFFSETS, numbers, strict=False)}
        is_pull = is_pull and fields.items() >= {**offsets, SIGNATURE: signature}.items()
    return (command, request) if is_pull and found == numbers else None


def found_pieces(
    encoding: int, *, broker_id: int, topic_sys_flag: int, group_sys_flag: int
) -> tuple[Sequence[bytes], int]:
    """Return the fixed parts of an answer with messages, and the place of a binary header's length.

    Between them stand the next, the first and the last offset, and in JSON the opaque number.
    """
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    first = {"suggestWhichBrokerId": str(broker_id)}
    last = {"topicSysFlag": str(topic_sys_flag), "groupSysFlag": str(group_sys_flag)}
    if encoding == JSON:
        before, after = (msgspec.json.encode(fields)[1:-1] for fields in (first, last))
        return [
            b'{"code":0,"extFields":{' + before + b',"nextBeginOffset":"',
            b'","minOffset":"',
            b'","maxOffset":"',
            b'",' + after + b'},"flag":1,"language":"' + LANGUAGE.encode() + b'","opaque":',
            b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":'
            + str(VERSION).encode()
            + b"}",
        ], 0
    empty = encode_binary_header(0, 0, RESPONSE, _FOUND, {})
    pairs = [_binary_pairs({name: ""})[: -_INT.size] for name in names]
    return [
        empty + _binary_pairs(first) + pairs[0],
        *pairs[1:],
        _binary_pairs(last),
    ], len(empty) - _INT.size


def _binary_pairs(fields: dict[str, str]) -> bytes:
    empty = encode_binary_header(0, 0, RESPONSE, _FOUND, {})
    return encode_binary_header(0, 0, RESPONSE, _FOUND, fields)[len(empty) :]
