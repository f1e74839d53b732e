"""Links with which a new user chooses a password: each works once and for ten minutes.

The first one is printed at the start of a console without users; administrators make the others.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.console.access.users import Role

VALID_SECONDS: Final = 600
_INVITATIONS_MAX: Final = 100


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a user who is to be made."""

    name: str
    """The name of the user; empty if the user chooses it."""
    role: Role
    reads_bodies: bool
    until: float


class Invitations:
    """Open invitations by the hash of their token. Belongs to the event loop.

    Args:
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, Invitation] = {}

    def make(self, *, name: str = "", role: Role, reads_bodies: bool = True) -> str:
        """Make an invitation and return its token."""
        now = self._clock()
        self._open = {key: each for key, each in self._open.items() if each.until > now}
        while len(self._open) >= _INVITATIONS_MAX:
            del self._open[next(iter(self._open))]
        token = secrets.token_urlsafe(32)
        self._open[_key(token)] = Invitation(
            name=name, role=role, reads_bodies=reads_bodies, until=now + VALID_SECONDS
        )
        return token

    def find(self, token: str) -> Invitation | None:
        """Return the invitation of a token; None if it was used, is too old or never was."""
        found = self._open.get(_key(token))
        return found if found is not None and found.until > self._clock() else None

    def use(self, token: str) -> None:
        """Make a token unusable."""
        self._open.pop(_key(token), None)


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
