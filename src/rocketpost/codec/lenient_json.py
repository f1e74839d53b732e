"""The non-standard JSON that RocketMQ writes on the wire and on disk.

Java's library writes integer map keys without quotes, ``{0:"a"}``, and object map keys as object
literals, ``{{"queueId":0}:5}``. :func:`standardize` turns such text into standard JSON in one pass:
an integer key becomes the string of its digits, an object key the string of its compact text.
:func:`decode` reads either form into a type. :func:`members` writes an object from keys that are
already JSON text, and so can write both forms.

An object inside an object key is refused: nobody writes that, and each level would double the
backslashes, so that a hundred bytes could become gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from rocketpost.errors import RemoteProtocolError

T = TypeVar("T")

MARKS_MAX: Final = 1_000_000
"""Maximum of braces and commas in lenient JSON; the state of 65,536 queues has half as many."""

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT: Final = rb'\{[^{}"]*+(?:' + _STRING + rb'[^{}"]*+)*+\}'
_KEY_NEXT: Final = rb"(?=\s*+(?:-?\d++|" + _FLAT + rb")\s*+:)"
# Everything up to and including the brace or comma before the next such key, then the key. All
# quantifiers are possessive, so nothing is tried twice and the work is linear in the text.
_next_key = re.compile(
    rb'((?:[^"{,]++|' + _STRING + rb"|[{,](?!" + _KEY_NEXT + rb"))*+[{,])"
    rb"\s*+(?:(-?\d++)|(" + _FLAT + rb"))\s*+:",
    re.DOTALL,
).match


def decode(data: bytes | memoryview, type_: type[T]) -> T:
    """Decode ``data`` into ``type_``: as standard JSON, or else in the lenient form.

    Raises:
        RemoteProtocolError: The text is neither, or does not fit the type.
    """
    try:
        return msgspec.json.decode(data, type=type_, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        first = error
    except RecursionError:
        raise RemoteProtocolError("bad JSON: nested too deeply") from None
    try:
        return msgspec.json.decode(standardize(bytes(data)), type=type_, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError(f"bad JSON: {first}") from None


def decode_any(data: bytes | memoryview) -> Any:
    """Decode ``data`` into plain values; object keys become their text."""
    return decode(data, Any)


def encode(value: object) -> bytes:
    """Encode without spaces, which would break clients that split some of these texts by hand."""
    return msgspec.json.encode(value)


def members(pairs: Iterable[tuple[bytes, bytes]]) -> msgspec.Raw:
    """Return an object whose keys and values are already JSON text."""
    return msgspec.Raw(b"{" + b",".join([key + b":" + value for key, value in pairs]) + b"}")


def standardize(data: bytes) -> bytes:
    """Rewrite lenient JSON as standard JSON; text that is not JSON at all stays invalid.

    Raises:
        RemoteProtocolError: The text has more braces and commas than the bound allows.
    """
    if data.count(b"{") + data.count(b",") > MARKS_MAX:
        raise RemoteProtocolError(f"bad JSON: more than {MARKS_MAX} braces and commas")
    out: list[bytes] = []
    at = 0
    while match := _next_key(data, at):
        before, digits, flat = match.group(1, 2, 3)
        out.append(before)
        out.append(b'"%b":' % digits if digits else _key_text(flat) + b":")
        at = match.end()
    out.append(data[at:])
    return b"".join(out)


def _key_text(flat: bytes) -> bytes:
    try:
        compact = msgspec.json.format(flat, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        compact = flat  # The reader of the key will refuse it.
    return msgspec.json.encode(compact.decode("utf-8", "replace"))
