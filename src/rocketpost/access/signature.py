"""Signatures of requests, as every RocketMQ client makes them.

    AccessKey      the name of the user
    SecurityToken  the token of a temporary key, if it has one
    Signature      Base64(HMAC-SHA1(secret, all values in the order of their names + body))

The signature covers neither the request code nor a time: it proves that the sender knew the secret,
and nothing more. TLS protects requests from being read, changed or sent again.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

UNSIGNED_BY_OLD_CLIENTS: Final = "_UNIQUE_KEY_QUERY"
"""A field that is not signed by clients up to :data:`_VERSION_OLD_MAX`."""
_VERSION_OLD_MAX: Final = 399
"""Last version (4.9.3) of clients that add that field after they sign."""

Buffer = bytes | bytearray | memoryview


def sign(secret: bytes, fields: Mapping[str, str], body: Sequence[Buffer]) -> str:
    """Return the signature of a request.

    Args:
        secret: The user's secret.
        fields: The header fields. A signature among them is left out.
        body: The body, in pieces.
    """
    return _signature(secret, fields, body).decode()


def _signature(secret: bytes, fields: Mapping[str, str], body: Iterable[Buffer]) -> bytes:
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
    # Java writes a question mark for half a surrogate pair, and so does this. One call for all of
    # the text costs less than a hash object with several updates, though it copies the body.
    data = b"".join((content.encode("utf-8", "replace"), *body))
    return b2a_base64(hmac.digest(secret, data, "sha1"), newline=False)


def is_signed(secret: bytes, fields: Mapping[str, str], body: Buffer, *, version: int) -> bool:
    """Tell whether the signature of a request is the one that ``secret`` makes.

    The time that this takes does not depend on the signature.

    Args:
        secret: The user's secret.
        fields: The header fields of the request.
        body: Its body.
        version: The version of its sender.
    """
    if version <= _VERSION_OLD_MAX and UNSIGNED_BY_OLD_CLIENTS in fields:
        fields = {key: text for key, text in fields.items() if key != UNSIGNED_BY_OLD_CLIENTS}
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(_signature(secret, fields, (body,)), given)
