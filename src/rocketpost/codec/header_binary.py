"""The binary header of the remoting protocol (encoding 1, RocketMQ's ROCKETMQ type).

    code      int16
    language  uint8   index into ``codes.LANGUAGES``
    version   int16
    opaque    int32
    flag      int32
    remark    int32 length, then UTF-8; 0 = none
    fields    int32 length of all pairs, then per pair: int16 length, name; int32 length, value

Integers are big-endian. Request codes over 32,767 cannot be carried.

A client's headers of one kind mostly have the same names and lengths, so the layout of a header is
remembered by its size. A header that matches it costs one comparison and one call for all values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from rocketpost.codec.codes import LANGUAGE, LANGUAGES, OURS, Sender
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
_FIXED_BYTES: Final = _FIXED.size
_REMARK_AT: Final = _FIXED_BYTES - 4
_LAYOUT_BYTES_MAX: Final = 4096
_LAYOUT_FIELDS: Final = range(2, 33)
"""Number of fields for which a layout is worth remembering."""
_MISSES_PER_LAYOUT: Final = 8
_FIRST_MISSES: Final = 2


class _Layout(NamedTuple):
    """Names, lengths and places of the fields in a header without a remark."""

    names: tuple[str, ...]
    get_values: Callable[[str], tuple[str, ...]]
    get_rest: Callable[[str], tuple[str, ...]]
    """Returns all that lies between the values, from the length of the remark on."""
    rest: tuple[str, ...]


_layouts: dict[int, _Layout] = {}
"""The layout to try first, by the size of the header."""
_misses: dict[int, int] = {}
"""Number of headers of a size that had another layout."""


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
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: Mapping[str, str],
    sender: Sender = OURS,
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
    language, version = sender
    language_code = _LANGUAGE_CODE if sender is OURS else LANGUAGES.index(language)
    fixed = _FIXED.pack(code, language_code, version, opaque, flag, len(text))
    return b"".join((fixed, text, _LENGTH.pack(len(pairs)), pairs))


def decode_binary_header(data: bytes) -> BinaryHeader:
    """Decode header bytes.

    Raises:
        RemoteProtocolError: A length exceeds the header.
    """
    layout = _layouts.get(len(data))
    if layout is not None:
        text = data.decode("latin-1")
        values = layout.get_values(text)
        if layout.get_rest(text) == layout.rest and "".join(values).isascii():
            code, language, version, opaque, flag, _ = _FIXED.unpack_from(data)
            fields = dict(zip(layout.names, values, strict=True))
            return BinaryHeader(code, _language(language), version, opaque, flag, None, fields)
    return _decode_any(data)


def _decode_any(data: bytes) -> BinaryHeader:
    ends: list[int] = []
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
        remark, at = _text(data, _FIXED_BYTES, remark_bytes, len(data))
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
                ends.append(at)
    except struct.error:
        raise RemoteProtocolError("binary header is cut short") from None
    if (
        not remark_bytes
        and len(data) <= _LAYOUT_BYTES_MAX
        and len(ends) == len(fields) in _LAYOUT_FIELDS
        and "".join(fields.values()).isascii()
    ):
        _remember(data, fields, ends)
    return BinaryHeader(code, _language(language), version, opaque, flag, remark or None, fields)


def _remember(data: bytes, fields: dict[str, str], ends: list[int]) -> None:
    """Remember the layout of some headers: of the second one that misses, then of every eighth."""
    size = len(data)
    misses = _misses[size] = _misses.get(size, 0) + 1
    if misses % _MISSES_PER_LAYOUT != _FIRST_MISSES:
        return
    values = []
    rest = []
    at = _REMARK_AT
    for value, end in zip(fields.values(), ends, strict=True):
        rest.append(slice(at, end - len(value)))
        values.append(slice(end - len(value), end))
        at = end
    get_rest = itemgetter(*rest, slice(at, size))
    text = data.decode("latin-1")
    _layouts[size] = _Layout(tuple(fields), itemgetter(*values), get_rest, get_rest(text))


def _language(code: int) -> str:
    return LANGUAGES[code] if code < len(LANGUAGES) else "OTHER"


def _text(data: bytes, at: int, size: int, end: int) -> tuple[str, int]:
    if size < 0 or at + size > end:
        raise RemoteProtocolError("binary header: a length overruns its part")
    return data[at : at + size].decode("utf-8", "replace"), at + size
