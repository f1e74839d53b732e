"""Sessions of browsers, kept in this process: a cookie has a random number and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.client.credentials import Credentials
from rocketpost.console.access.users import User

IDLE_SECONDS: Final = 30 * 60
AGE_SECONDS_MAX: Final = 12 * 3600
SESSIONS_MAX: Final = 1000
_TOKEN_BYTES: Final = 32


class Session(msgspec.Struct, kw_only=True):
    """A browser that has logged in."""

    id: str
    """Short name of the session for lists; it does not open the session."""
    user: User
    csrf: str
    address: str
    agent: str
    began: float
    seen: float
    credentials: Credentials | None = None
    """Keys of a user of the brokers, with whom the brokers' requests are signed."""


class Sessions:
    """Sessions by the hash of their cookie. Belongs to the event loop.

    Args:
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def begin(
        self, user: User, *, address: str, agent: str, credentials: Credentials | None = None
    ) -> str:
        """Begin a session and return the value of its cookie."""
        self._expire()
        if len(self._sessions) >= SESSIONS_MAX:
            oldest = min(self._sessions, key=lambda each: self._sessions[each].seen)
            del self._sessions[oldest]
        token, now = secrets.token_urlsafe(_TOKEN_BYTES), self._clock()
        key = _key(token)
        self._sessions[key] = Session(
            id=key[:12],
            user=user,
            csrf=secrets.token_urlsafe(_TOKEN_BYTES),
            address=address,
            agent=agent[:200],
            began=now,
            seen=now,
            credentials=credentials,
        )
        return token

    def find(self, token: str, *, is_automatic: bool = False) -> Session | None:
        """Return the session of a cookie, or None if it has ended.

        Args:
            token: The value of the cookie.
            is_automatic: Whether a page refreshes itself; then the visitor may be away, and the
                session is not prolonged.
        """
        session = self._sessions.get(_key(token))
        if session is None or self._is_over(session):
            self._sessions.pop(_key(token), None)
            return None
        if not is_automatic:
            session.seen = self._clock()
        return session

    def end(self, session_id: str) -> bool:
        """End a session by its short name; return whether there was one."""
        keys = [key for key, each in self._sessions.items() if each.id == session_id]
        for key in keys:
            del self._sessions[key]
        return bool(keys)

    def end_of_user(self, name: str) -> None:
        """End all sessions of a user."""
        self._sessions = {
            key: each for key, each in self._sessions.items() if each.user.name != name
        }

    def list(self) -> list[Session]:
        """Return the sessions, the last seen first."""
        self._expire()
        return sorted(self._sessions.values(), key=lambda each: -each.seen)

    def _expire(self) -> None:
        self._sessions = {
            key: each for key, each in self._sessions.items() if not self._is_over(each)
        }

    def _is_over(self, session: Session) -> bool:
        now = self._clock()
        return now - session.seen > IDLE_SECONDS or now - session.began > AGE_SECONDS_MAX


def is_csrf_token(session: Session, given: str) -> bool:
    """Tell whether a form has the token of its session."""
    return hmac.compare_digest(session.csrf.encode(), given.encode())


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
