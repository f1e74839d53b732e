"""The body of a batch send: entries back to back.

    total size   int32      of the entry, this field included
    magic        int32      0, ignored
    body crc     int32      0, ignored: the broker computes its own
    flag         int32
    body         int32 + n
    properties   int16 + n

Topic, queue, sysFlag and born time are the request's.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from rocketpost.errors import RemoteProtocolError

_HEAD: Final = Struct(">iiiii")
_SHORT: Final = Struct(">h")
ENTRY_BYTES_MIN: Final = _HEAD.size + _SHORT.size


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes | memoryview
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch send."""
    parts: list[bytes | memoryview] = []
    for flag, body, properties in items:
        size = ENTRY_BYTES_MIN + len(body) + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, flag, len(body)))
        parts.append(body)
        parts.append(_SHORT.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def decode_batch(body: bytes | memoryview, *, count_max: int | None = None) -> list[BatchItem]:
    """Cut the body of a batch send into messages; their bodies are views of it.

    Raises:
        RemoteProtocolError: The lengths do not add up, there is no message, or there are more than
            ``count_max``, which is found before the rest is looked at.
    """
    view = memoryview(body)
    items: list[BatchItem] = []
    at, end = 0, len(view)
    while at < end:
        if len(items) == count_max:
            raise RemoteProtocolError(f"more than {count_max} messages; send several batches")
        if end - at < ENTRY_BYTES_MIN:
            raise RemoteProtocolError(f"{end - at} stray bytes after {len(items)} batch entries")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(view, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes + _SHORT.size
        if body_bytes < 0 or properties_at > end:
            raise RemoteProtocolError(f"batch entry {len(items)} has a body of {body_bytes} bytes")
        (properties_bytes,) = _SHORT.unpack_from(view, properties_at - _SHORT.size)
        after = properties_at + properties_bytes
        if properties_bytes < 0 or after > end or after - at != size:
            raise RemoteProtocolError(f"batch entry {len(items)} does not fill its {size} bytes")
        message = view[body_at : body_at + body_bytes]
        items.append(BatchItem(flag, message, bytes(view[properties_at:after])))
        at = after
    if not items:
        raise RemoteProtocolError("the batch is empty")
    return items
