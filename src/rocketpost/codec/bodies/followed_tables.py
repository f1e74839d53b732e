"""Tables that a slave follows: the body of an answer to FOLLOW_TABLES.

An int32, the size of the index; the index, a JSON list of ``{"name", "version", "size", "whole"}``;
then the texts of the tables, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from rocketpost.errors import RemoteProtocolError

NOT_NOW: Final = "*"
"""Version by which a slave asks for no changes of a table."""
_SIZE: Final = Struct(">i")


class TableText(NamedTuple):
    """The text of a table, or of the rows that have changed."""

    name: str
    version: str
    text: bytes
    is_whole: bool = True
    """Whether rows that are missing in the text do not exist."""


class _Entry(msgspec.Struct):
    name: str
    version: str
    size: int
    whole: bool = True


def encode_tables(tables: Sequence[TableText]) -> bytes:
    """Return the body of an answer."""
    index = msgspec.json.encode(
        [_Entry(each.name, each.version, len(each.text), each.is_whole) for each in tables]
    )
    return b"".join([_SIZE.pack(len(index)), index, *(each.text for each in tables)])


def decode_tables(data: bytes | memoryview) -> list[TableText]:
    """Read the body of an answer.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    data = bytes(data)
    if len(data) < _SIZE.size:
        raise RemoteProtocolError(f"bad body: {len(data)} bytes are no tables")
    at = _SIZE.size + _SIZE.unpack_from(data)[0]
    try:
        index = msgspec.json.decode(data[_SIZE.size : max(at, 0)], type=list[_Entry])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"bad body: the index of the tables: {error}") from None
    tables = []
    for entry in index:
        text = data[at : at + entry.size]
        if entry.size < 0 or len(text) != entry.size:
            raise RemoteProtocolError(f"bad body: the table {entry.name} is cut short")
        tables.append(TableText(entry.name, entry.version, text, entry.whole))
        at += entry.size
    return tables


def encode_known(versions: Mapping[str, str]) -> str:
    """Return the versions that a slave has, as a header field."""
    return ";".join(f"{name}={version}" for name, version in versions.items())


def decode_known(text: str) -> dict[str, str]:
    """Read the versions that a slave has; parts without ``=`` are ignored."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {name: version for name, equals, version in pairs if equals}
