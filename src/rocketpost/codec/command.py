"""Commands: requests and responses, in either header encoding.

flag bit 0  this is a response
flag bit 1  this request expects no response (oneway)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from rocketpost.codec.codes import OURS, ResponseCode, Sender
from rocketpost.codec.faults import InvalidParameter, fault_for
from rocketpost.codec.frames import Frame, encode_frame
from rocketpost.codec.header_binary import decode_binary_header, encode_binary_header
from rocketpost.codec.header_json import (
    decode_fields,
    decode_json_header,
    encode_json_header,
    language_name,
)
from rocketpost.codec.numbers import Int32
from rocketpost.errors import RemoteProtocolError

T = TypeVar("T")

JSON: Final = 0
BINARY: Final = 1
RESPONSE: Final = 1
ONEWAY: Final = 2

_WIRE_NAMES: Final = {
    "sender_language": "language",
    "raw_fields": "extFields",
    "text_fields": "#text",
    "body": "#body",
    "encoding": "#encoding",
    "caller": "#caller",
    "timing": "#timing",
}
_decoders: dict[type, msgspec.json.Decoder[object]] = {}


class Command(msgspec.Struct, gc=False, rename=_WIRE_NAMES):
    """One decoded command. Read its fields with :meth:`read` or :attr:`fields`.

    A JSON header is decoded straight into a command; the last five members are not part of it.
    """

    code: Int32 = 0
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    sender_language: Any = "JAVA"
    remark: str | None = None
    raw_fields: msgspec.Raw = msgspec.Raw(b"")
    text_fields: dict[str, str] | None = None
    body: bytes = b""
    encoding: int = JSON
    caller: Any = None
    """The user whom the server has authenticated, if it did."""
    timing: Any = None
    """The time at which the server got it, if the server measures times."""

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return f"<{kind} {self.code} opaque={self.opaque} fields={self.fields!r}>"

    @property
    def is_response(self) -> bool:
        """Whether this is a response; the bit takes precedence over the oneway bit."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether no response may be sent."""
        return bool(self.flag & ONEWAY)

    @property
    def language(self) -> str:
        """The sender's language, one of ``codes.LANGUAGES``."""
        return language_name(self.sender_language)

    @property
    def fields(self) -> dict[str, str]:
        """The header fields as text, exactly as on the wire."""
        if self.text_fields is None:
            self.text_fields = decode_fields(self.raw_fields)
        return self.text_fields

    def read(self, cls: type[T]) -> T:
        """Decode the header fields into ``cls``, a ``msgspec.Struct`` with the names of the wire.

        Raises:
            InvalidParameter: A required field is missing, or has a value of the wrong type.
        """
        raw = self.raw_fields
        if raw:
            decoder = _decoders.get(cls)
            if decoder is None:
                decoder = _decoders[cls] = msgspec.json.Decoder(cls, strict=False)
            try:
                return decoder.decode(raw)  # type: ignore[return-value]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # A client that writes numbers for strings, or a real mistake; see below.
        try:
            return msgspec.convert(self.fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidParameter(f"bad request header: {error}") from None
        except RemoteProtocolError as error:
            raise InvalidParameter(str(error)) from None

    def raise_for_code(self) -> None:
        """Raise the :class:`Fault` that this response stands for, if it is one."""
        if self.code != ResponseCode.SUCCESS:
            raise fault_for(self.code, self.remark)


_decode_json = msgspec.json.Decoder(Command).decode


def decode_command(frame: Frame) -> Command:
    """Decode a frame.

    Raises:
        RemoteProtocolError: The header is unreadable; drop the connection.
    """
    return next(decode_commands((frame,)))


def decode_commands(frames: Iterable[Frame]) -> Iterator[Command]:
    """Decode frames in one loop; a busy connection delivers hundreds at once.

    Raises:
        RemoteProtocolError: A header is unreadable; drop the connection.
    """
    for encoding, header, body in frames:
        if encoding == JSON:
            try:
                command = _decode_json(header)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                command = decode_json_header(header, _decode_json)
            # A header may claim these members, but they never come from it.
            command.body = body
            command.encoding = JSON
            command.text_fields = None
            command.caller = None
        elif encoding == BINARY:
            command = _from_binary(header, body)
        else:
            raise RemoteProtocolError(f"unknown header encoding {encoding}")
        yield command


def _from_binary(header: bytes, body: bytes) -> Command:
    plain = decode_binary_header(header)
    return Command(
        plain.code,
        opaque=plain.opaque,
        flag=plain.flag,
        version=plain.version,
        sender_language=plain.language,
        remark=plain.remark,
        text_fields=plain.fields,
        body=body,
        encoding=BINARY,
    )


def encode_command(
    code: int,
    *,
    opaque: int,
    flag: int = 0,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body_bytes: int = 0,
    encoding: int = JSON,
    sender: Sender = OURS,
) -> bytes:
    """Return a frame up to its body; the caller writes the body after it.

    ``sender`` is another program for which this one speaks.

    Raises:
        LocalProtocolError: The frame would be too large, or the code does not fit the encoding.
    """
    if encoding == BINARY:
        header = encode_binary_header(code, opaque, flag, remark, fields or {}, sender)
    else:
        header = encode_json_header(code, opaque, flag, remark, fields, sender)
    return encode_frame(encoding, header, body_bytes)


def encode_response(
    request: Command,
    code: int = ResponseCode.SUCCESS,
    *,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body_bytes: int = 0,
) -> bytes:
    """Return the response to ``request`` up to its body, in the request's encoding."""
    return encode_command(
        code,
        opaque=request.opaque,
        flag=RESPONSE,
        remark=remark,
        fields=fields,
        body_bytes=body_bytes,
        encoding=request.encoding,
    )


def to_fields(header: object) -> dict[str, str]:
    """Return a header struct as wire fields: all values as text, absent ones omitted."""
    texts = {}
    for name, value in msgspec.to_builtins(header).items():
        if value is None:
            continue
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        else:
            texts[name] = str(value)
    return texts
