"""The JSON header of the remoting protocol (encoding 0).

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":479}

``extFields`` stay undecoded here, so that a handler decodes them straight into its own type. Some
clients write numbers instead of strings: :func:`decode_fields` keeps their literal spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from rocketpost.codec.codes import LANGUAGES, OURS, Sender
from rocketpost.errors import RemoteProtocolError

T = TypeVar("T")


class _Outgoing(msgspec.Struct, gc=False, omit_defaults=True):
    # Java's members in Java's order; absent ones are omitted, never null.
    code: int
    extFields: dict[str, str] | None = None  # noqa: N815
    flag: int = -1
    language: str = ""
    opaque: int | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""  # noqa: N815
    version: int = -1


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_texts = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


def decode_json_header(data: bytes, decode: Callable[[bytes | str], T]) -> T:
    """Decode header bytes; ill-formed UTF-8 inside strings is replaced, as Java does.

    Args:
        data: The header.
        decode: Decodes JSON into the header's type.

    Raises:
        RemoteProtocolError: The header is not a JSON object of the right shape.
    """
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            return decode(data.decode("utf-8", "replace"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RemoteProtocolError(f"bad JSON header: {error}") from None
    except RecursionError:
        raise RemoteProtocolError("bad JSON header: nested too deeply") from None


def encode_json_header(
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: Mapping[str, str] | None,
    sender: Sender = OURS,
) -> bytes:
    """Return the header bytes."""
    header = _Outgoing(
        code=code,
        extFields=dict(fields) if fields else None,
        flag=flag,
        language=sender[0],
        opaque=opaque,
        remark=remark or None,
        serializeTypeCurrentRPC="JSON",
        version=sender[1],
    )
    try:
        return _encode(header)
    except UnicodeEncodeError:
        clean = {name: _printable(value) for name, value in (fields or {}).items()}
        return encode_json_header(code, opaque, flag, _printable(remark or ""), clean, sender)


def decode_fields(raw: msgspec.Raw | bytes) -> dict[str, str]:
    """Return ``extFields`` as text: numbers and booleans as spelled, nulls omitted.

    Raises:
        RemoteProtocolError: ``raw`` is not a JSON object.
    """
    data = bytes(raw)
    if not data or data == b"null":
        return {}
    try:
        return _decode_texts(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # numbers, or worse
    try:
        values = _decode_fields(data)
        texts = {}
        for name, value in values.items():
            text = bytes(value)
            if text[:1] == b'"':
                texts[name] = msgspec.json.decode(text, type=str)
            elif text != b"null":
                texts[name] = text.decode("utf-8", "replace")
        return texts
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"bad extFields: {error}") from None


def language_name(value: object) -> str:
    """Return the name of a language; clients send the name or its number."""
    if isinstance(value, str):
        return value if value in LANGUAGES else "OTHER"
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return "OTHER"


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
