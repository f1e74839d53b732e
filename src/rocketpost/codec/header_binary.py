"""The binary header of the remoting protocol (encoding 1, RocketMQ's ROCKETMQ type).

    code      int16
    language  uint8   index into ``codes.LANGUAGES``
    version   int16
    opaque    int32
    flag      int32
    remark    int32 length, then UTF-8; 0 = none
    fields    int32 length of all pairs, then per pair: int16 length, name; int32 length, value

Integers are big-endian. Request codes over 32,767 cannot be carried.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.codec.codes import LANGUAGE, LANGUAGES, VERSION
from rocketpost.errors import LocalProtocolError, RemoteProtocolError

_FIXED: Final = struct.Struct(
    ">h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
)
_LENGTH: Final = struct.Struct(">i")
_NAME_LENGTH: Final = struct.Struct(">h")
_LANGUAGE_CODE: Final = LANGUAGES.index(LANGUAGE)


class BinaryHeader(NamedTuple):
    """A decoded header."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str]


def encode_binary_header(
    code: int, opaque: int, flag: int, remark: str | None, fields: Mapping[str, str]
) -> bytes:
    """Return the header bytes.

    Raises:
        LocalProtocolError: The code or a name is too large for this encoding.
    """
    if not -0x8000 <= code <= 0x7FFF:
        raise LocalProtocolError(f"code {code} does not fit the binary header; use JSON")
    pairs = bytearray()
    for name, value in fields.items():
        name_bytes, value_bytes = name.encode(), value.encode("utf-8", "replace")
        if len(name_bytes) > 0x7FFF:
            raise LocalProtocolError(f"field name of {len(name_bytes)} bytes")
        pairs += _NAME_LENGTH.pack(len(name_bytes)) + name_bytes
        pairs += _LENGTH.pack(len(value_bytes)) + value_bytes
    text = remark.encode("utf-8", "replace") if remark else b""
    fixed = _FIXED.pack(code, _LANGUAGE_CODE, VERSION, opaque, flag, len(text))
    return b"".join((fixed, text, _LENGTH.pack(len(pairs)), pairs))


def decode_binary_header(data: bytes) -> BinaryHeader:
    """Decode header bytes.

    Raises:
        RemoteProtocolError: A length exceeds the header.
    """
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
        at = _FIXED.size
        remark, at = _text(data, at, remark_bytes, len(data))
        (pairs_bytes,) = _LENGTH.unpack_from(data, at)
        at += 4
        end = at + pairs_bytes
        if pairs_bytes < 0 or end > len(data):
            raise RemoteProtocolError("binary header: fields overrun the header")
        fields: dict[str, str] = {}
        while at < end:
            (name_bytes,) = _NAME_LENGTH.unpack_from(data, at)
            name, at = _text(data, at + 2, name_bytes, end)
            (value_bytes,) = _LENGTH.unpack_from(data, at)
            value, at = _text(data, at + 4, value_bytes, end)
            if value:
                fields[name] = value
    except struct.error:
        raise RemoteProtocolError("binary header is cut short") from None
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return BinaryHeader(code, name, version, opaque, flag, remark or None, fields)


def _text(data: bytes, at: int, size: int, end: int) -> tuple[str, int]:
    if size < 0 or at + size > end:
        raise RemoteProtocolError("binary header: a length overruns its part")
    return data[at : at + size].decode("utf-8", "replace"), at + size
