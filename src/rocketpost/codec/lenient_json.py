"""The JSON that RocketMQ really puts on the wire and on disk.

Java's library writes integer map keys without quotes, ``{0:"a"}``, and object map keys as object
literals, ``{{"queueId":0}:5}``. :func:`standardize` turns such text into standard JSON in one pass:
an integer key becomes the string of its digits, an object key the string of its compact text.
:func:`decode` reads either kind into a type. :func:`members` writes an object from keys that are
already text, which is how the two forms are produced again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from rocketpost.errors import RemoteProtocolError

T = TypeVar("T")

DEPTH_MAX: Final = 64
_SPACE: Final = b" \t\r\n"
_KEY_DIGITS: Final = b"-0123456789"


def decode(data: bytes | memoryview, type_: type[T]) -> T:
    """Decode ``data`` into ``type_``, standard JSON first, the lenient form if need be.

    Raises:
        RemoteProtocolError: It is neither, or does not fit the type.
    """
    try:
        return msgspec.json.decode(data, type=type_, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        first = error
    try:
        return msgspec.json.decode(standardize(bytes(data)), type=type_, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RemoteProtocolError(f"bad JSON: {first}") from None


def decode_any(data: bytes | memoryview) -> Any:
    """Decode ``data`` into plain values; object keys become their text."""
    return decode(data, Any)


def encode(value: object) -> bytes:
    """Encode compactly: other clients split some of these texts by hand and spaces break them."""
    return msgspec.json.encode(value)


def members(pairs: Iterable[tuple[bytes, bytes]]) -> msgspec.Raw:
    """Return an object of members whose keys and values are JSON text already."""
    return msgspec.Raw(b"{" + b",".join([key + b":" + value for key, value in pairs]) + b"}")


def standardize(data: bytes) -> bytes:
    """Rewrite lenient JSON as standard JSON; text that is no JSON at all comes out as such.

    Raises:
        RemoteProtocolError: Nested too deeply, or a string or an object key does not end.
    """
    out = bytearray()
    stack = bytearray()
    key_next = False
    at, end = 0, len(data)
    while at < end:
        char = data[at]
        if char in _SPACE:
            at += 1
            continue
        if char == 0x22:  # "
            stop = _string_end(data, at)
            out += data[at:stop]
            at, key_next = stop, False
            continue
        if key_next and char in _KEY_DIGITS:
            stop = at + 1
            while stop < end and data[stop] in _KEY_DIGITS:
                stop += 1
            out += b'"' + data[at:stop] + b'"'
            at, key_next = stop, False
            continue
        if key_next and char == 0x7B:  # {
            stop = _object_end(data, at)
            text = standardize(data[at:stop]).decode("utf-8", "replace")
            out += msgspec.json.encode(text)
            at, key_next = stop, False
            continue
        if char == 0x7B or char == 0x5B:  # { [
            stack.append(char)
            if len(stack) > DEPTH_MAX:
                raise RemoteProtocolError(f"JSON nested deeper than {DEPTH_MAX}")
            key_next = char == 0x7B
        elif char == 0x7D or char == 0x5D:  # } ]
            if stack:
                stack.pop()
            key_next = False
        elif char == 0x2C:  # ,
            key_next = bool(stack) and stack[-1] == 0x7B
        out.append(char)
        at += 1
    return bytes(out)


def _string_end(data: bytes, start: int) -> int:
    at = start + 1
    while True:
        at = data.find(b'"', at)
        if at < 0:
            raise RemoteProtocolError("JSON string does not end")
        slashes = at - 1
        while data[slashes] == 0x5C:
            slashes -= 1
        at += 1
        if (at - 2 - slashes) % 2 == 0:
            return at


def _object_end(data: bytes, start: int) -> int:
    depth, at, end = 0, start, len(data)
    while at < end:
        char = data[at]
        if char == 0x22:
            at = _string_end(data, at)
            continue
        if char == 0x7B:
            depth += 1
            if depth > DEPTH_MAX:
                raise RemoteProtocolError(f"JSON nested deeper than {DEPTH_MAX}")
        elif char == 0x7D:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise RemoteProtocolError("JSON object key does not end")
