"""The property string of a message: ``name \\x01 value \\x02`` repeated, in UTF-8.

The last ``\\x02`` may be missing. Like Java, reading drops pairs without a name, a value or a
separator. A value may contain ``\\x01``, since the first one separates. Of two pairs with the same
name the later counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rocketpost.errors import LocalProtocolError
from rocketpost.model.failure import KIND, TEXT, ConsumeFailure

PROPERTIES_BYTES_MAX: Final = 32767
"""Lengths are signed 16-bit numbers in records and batches."""

CHECKSUM_NAME: Final = b"__CRC32#\x01"
CHECKSUM_BYTES: Final = 20
"""Length of the checksum property: its name, ten digits, separators."""

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property string.

    Raises:
        LocalProtocolError: A name or value contains a separator, or the string is too long.
    """
    for name, value in properties.items():
        if not name or NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise LocalProtocolError(f"property {name!r} cannot be written: bad name or value")
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    data = text.encode("utf-8", "replace")
    if len(data) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties take {len(data)} of {PROPERTIES_BYTES_MAX} bytes")
    return data


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Return the properties by name; undecodable bytes become U+FFFD."""
    properties: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def properties_bytes_max(has_checksum: bool) -> int:
    """Return the maximum length of a sender's properties; the broker adds its own to them."""
    return PROPERTIES_BYTES_MAX - (CHECKSUM_BYTES + 1 if has_checksum else 0)


def encode_checksum(checksum: int) -> bytes:
    """Return the property with a record's checksum: ten digits, last digit first."""
    return CHECKSUM_NAME + (b"%010d" % checksum)[::-1] + b"\x02"


def without_checksum(properties: bytes) -> bytes:
    """Return a property string without the record checksum."""
    pairs = properties.split(b"\x02")
    return b"\x02".join([pair for pair in pairs if not pair.startswith(CHECKSUM_NAME)])


def without_failure(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties without those that describe a failure."""
    return {key: value for key, value in properties.items() if key not in (KIND, TEXT)}


def with_failure(properties: Mapping[str, str], failure: ConsumeFailure | None) -> bytes:
    """Return the property string with a failure, or without it if it does not fit.

    Raises:
        LocalProtocolError: See :func:`encode_properties`.
    """
    if failure is None:
        return encode_properties(properties)
    try:
        return encode_properties({**properties, **failure.properties})
    except LocalProtocolError:
        return encode_properties(properties)


def find_property(padded: bytes, mark: bytes) -> str | None:
    """Return one property as ``decode_properties`` would, without decoding the others.

    Args:
        padded: The property string with a ``\\x02`` in front.
        mark: The name between ``\\x02`` and ``\\x01``.
    """
    at = padded.rfind(mark)
    if at < 0:
        return None
    at += len(mark)
    end = padded.find(b"\x02", at)
    value = padded[at:end] if end >= 0 else padded[at:]
    if not value:  # such a pair does not count, but an earlier one may
        earlier = re.findall(re.escape(mark) + rb"([^\x02]++)", padded)
        if not earlier:
            return None
        value = earlier[-1]
    return str(value, "utf-8", "replace")
