"""Key-value tables: one namespace on the wire, all namespaces on disk (``kvConfig.json``).

wire  {"table":{"TopicA":"broker-a:4"}}
disk  {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"}}}
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rocketpost.codec import lenient_json
from rocketpost.codec.bodies.java_text import encode_text_table, quote
from rocketpost.codec.lenient_json import members


class _Table(msgspec.Struct):
    table: dict[str, str] = {}


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Encode one namespace, sorted by key."""
    return b'{"table":' + encode_text_table(table) + b"}"


def decode_kv_table(body: bytes | memoryview) -> dict[str, str]:
    """Decode one namespace.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return lenient_json.decode(body, _Table).table


def encode_kv_file(namespaces: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the text of ``kvConfig.json``."""
    tables = [(quote(name), encode_text_table(namespaces[name])) for name in sorted(namespaces)]
    return b'{"configTable":' + bytes(members(tables)) + b"}"


def decode_kv_file(text: bytes) -> dict[str, dict[str, str]]:
    """Read the text of ``kvConfig.json``.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    return lenient_json.decode(text, _File).config_table
