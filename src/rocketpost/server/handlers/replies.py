"""Functions that all handlers share: read bodies, build replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, ServerError
from rocketpost.codec.frames import FRAME_BYTES_MAX
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RemoteProtocolError
from rocketpost.server.routes.route import Reply

T = TypeVar("T")

BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
"""Space in a frame after the largest header that we write."""


def read_body(command: Command, decode: Callable[[bytes], T]) -> T:
    """Decode a request's body.

    Raises:
        InvalidParameter: The body is malformed.
    """
    try:
        return decode(command.body)
    except RemoteProtocolError as error:
        raise InvalidParameter(str(error)) from None


def json_reply(body: object, *, fields: Mapping[str, str] | None = None) -> Reply:
    """Return success with a JSON body; bytes are JSON text already.

    Raises:
        ServerError: The answer does not fit into a frame.
    """
    data = body if isinstance(body, bytes) else encode(body)
    if len(data) > BODY_BYTES_MAX:
        raise ServerError(
            f"the answer has {len(data)} bytes, more than fit into one frame; ask for less"
        )
    return Reply(body=data, fields=fields)


def fields_reply(header: object) -> Reply:
    """Return success with header fields and no body."""
    return Reply(fields=to_fields(header))
