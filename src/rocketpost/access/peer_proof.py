"""Proofs by which two servers show each other that they know the secret that servers share.

Both choose a number that was never used before. Each proof is an HMAC of both numbers, so an old
one proves nothing; of the side that makes it, so it cannot be sent back to its maker; of the
purpose, so that a proof for one port is worth nothing at another; and of a value of the TLS
connection, if there is one, so that nobody in the middle can pass it on.
"""

from __future__ import annotations

import enum
import hmac
from typing import Final, NamedTuple

NONCE_BYTES: Final = 32
"""Size of the numbers that are used once."""
_LABEL: Final = b"rocketpost peer 1"


class Side(enum.Enum):
    """The side of a connection that makes a proof."""

    CALLER = b"caller"
    """The server that connects."""
    CALLED = b"called"
    """The server that listens."""


class Meeting(NamedTuple):
    """The facts about one connection that a proof covers."""

    purpose: str
    """What the connection is for."""
    user: str
    """The user that servers share."""
    caller_nonce: bytes
    called_nonce: bytes
    binding: bytes
    """A value of the TLS connection; empty without TLS."""

    def prove(self, secret: bytes, side: Side) -> bytes:
        """Return the proof of one side."""
        parts = (
            _LABEL,
            side.value,
            self.purpose.encode(),
            self.user.encode(),
            self.caller_nonce,
            self.called_nonce,
            self.binding,
        )
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(secret, text, "sha256")

    def is_proof(self, secret: bytes, side: Side, proof: bytes) -> bool:
        """Tell whether a proof is right; the time that this takes does not depend on it."""
        return hmac.compare_digest(self.prove(secret, side), proof)
