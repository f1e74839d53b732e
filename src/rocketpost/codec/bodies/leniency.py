"""Lenient reading of JSON bodies from foreign clients.

Java leaves null members out, C++ leaves empty sets out and writes enums as their ordinal numbers,
Go writes numbers in quotes. :func:`fill` accepts all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from rocketpost.codec.lenient_json import decode_any
from rocketpost.errors import RemoteProtocolError

T = TypeVar("T")


def without_nulls(value: Any) -> Any:
    """Return plain JSON values without the null members of objects."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def fill(cls: type[T], value: Any) -> T:
    """Convert plain values into ``cls``; null means absent, and numbers may be quoted.

    Raises:
        RemoteProtocolError: A member has a value of the wrong type.
    """
    try:
        return msgspec.convert(without_nulls(value), cls, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"bad body: {error}") from None
    except RecursionError:
        raise RemoteProtocolError("bad body: nested too deeply") from None


def decode_body(data: bytes | memoryview, cls: type[T]) -> T:
    """Decode a JSON body into ``cls``, leniently.

    Raises:
        RemoteProtocolError: The body is not JSON, or does not fit ``cls``.
    """
    return fill(cls, decode_any(data))


def enum_name(value: object, names: Sequence[str], default: str) -> str:
    """Return the member of ``names`` for ``value``: a name in any case, or an ordinal."""
    if isinstance(value, str):
        upper = value.upper()
        return upper if upper in names else default
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    return default
