"""The fixed parts of responses to stored sends, for those who write them without objects.

Between the parts stand the message ids, the queue id, the queue offset, the unique key and, in
JSON, the opaque number (``kernel.send_replies``). In the binary encoding each of these values is
preceded by its length, and the parts hold zeros in the places of lengths and opaque. The result is
what ``codec.command.encode_response`` returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rocketpost.codec.codes import LANGUAGE, VERSION
from rocketpost.codec.command import RESPONSE
from rocketpost.codec.header_binary import encode_binary_header

_NAMES = ("msgId", "queueId", "queueOffset", "transactionId")


def json_pieces(region: str, *, trace_on: bool) -> Sequence[bytes]:
    """Return the six fixed parts of a response with a JSON header."""
    names = [b'"' + name.encode() + b'":"' for name in _NAMES]
    traced = b"true" if trace_on else b"false"
    return [
        b'{"code":0,"extFields":{' + names[0],
        *[b'",' + name for name in names[1:]],
        b'","MSG_REGION":' + msgspec.json.encode(region) + b',"TRACE_ON":"' + traced + b'"},'
        b'"flag":1,"language":"' + LANGUAGE.encode() + b'","opaque":',
        b',"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}",
    ]


def binary_pieces(region: str, *, trace_on: bool) -> Sequence[bytes]:
    """Return the five fixed parts of a response with a binary header."""
    empty = encode_binary_header(0, 0, RESPONSE, None, {})
    pairs = [encode_binary_header(0, 0, RESPONSE, None, {name: ""}) for name in _NAMES]
    last = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
    return [
        empty + pairs[0][len(empty) :],
        *[pair[len(empty) :] for pair in pairs[1:]],
        encode_binary_header(0, 0, RESPONSE, None, last)[len(empty) :],
    ]
