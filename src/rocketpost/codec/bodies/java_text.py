"""JSON strings escaped as Java's library escapes them, in its plain and its ASCII form.

The plain form is raw UTF-8; it escapes quotes, backslashes, control characters (including U+007F to
U+009F) and the two line separators. The ASCII form, used in routes for newer clients, also escapes
slashes and every character beyond ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_plain = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ascii = re.compile('["\\\\/\x00-\x1f\x7f-\U0010ffff]')


def quote(text: str, *, ascii_only: bool = False) -> bytes:
    """Return ``text`` as a JSON string; lone surrogates become question marks, as in Java."""
    text = text.encode("utf-8", "replace").decode()
    found = (_ascii if ascii_only else _plain).sub(_escape, text)
    return f'"{found}"'.encode()


def array(items: Iterable[bytes]) -> bytes:
    """Return a JSON array of values that are already JSON text."""
    return b"[" + b",".join(items) + b"]"


def encode_number_keys(values: Mapping[int, bytes], *, quoted: bool) -> bytes:
    """Return an object with integer keys in ascending order; values are already JSON text."""
    form = b'"%d":%b' if quoted else b"%d:%b"
    return b"{" + b",".join([form % (key, values[key]) for key in sorted(values)]) + b"}"


def encode_text_table(values: Mapping[str, str]) -> bytes:
    """Return an object of strings, sorted by key, in the plain form."""
    pairs = [quote(key) + b":" + quote(values[key]) for key in sorted(values)]
    return b"{" + b",".join(pairs) + b"}"


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    if ord(char) > 0xFFFF:
        pair = char.encode("utf-16-be").hex().upper()
        return f"\\u{pair[:4]}\\u{pair[4:]}"
    return f"\\u{ord(char):04X}"
