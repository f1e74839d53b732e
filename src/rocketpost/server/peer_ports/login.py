"""Logins between brokers: both sides prove that they know the secret that servers share.

The secret is that of ``innerClientAuthenticationCredentials``, as the settings of both have it. The
table of users is not asked: the members of a group elect a leader before any of them knows which
table is the newest.
"""

from __future__ import annotations

import secrets
from typing import Final, TypeVar

from rocketpost.access.peer_proof import NONCE_BYTES, Meeting, Side
from rocketpost.codec.peer_login import (
    Challenge,
    Frame,
    Introduction,
    Proof,
    Verdict,
    encode_login,
    take_login,
)
from rocketpost.errors import ConfigError, RemoteProtocolError, ReplicationError
from rocketpost.server.settings.access import Login
from rocketpost.transport.tls_socket import StreamSocket, TlsSocket, receive, send_all

KEY: Final = "innerClientAuthenticationCredentials"
_READ_BYTES: Final = 4096
_NAME_BYTES_MAX: Final = 255
_REFUSAL: Final = f"its user or secret is not the one that is set here ({KEY})"

_Frame = TypeVar("_Frame", Introduction, Challenge, Proof, Verdict)


class PeerLogin:
    """The secret that the servers of a cluster share.

    Args:
        login: The user and its secret; None if the settings have none.
    """

    def __init__(self, login: Login | None) -> None:
        if login is not None and len(login.name.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"{KEY}: the accessKey has more than {_NAME_BYTES_MAX} bytes")
        self._user = "" if login is None else login.name
        # Without a login, no broker can prove anything.
        self._secret = secrets.token_bytes(32) if login is None else login.secret.encode()
        self.is_set = login is not None
        """Whether this broker can log in."""

    async def prove(self, sock: StreamSocket, purpose: str) -> None:
        """Log in to the broker at the other end, and check that it has the secret.

        Raises:
            ReplicationError: It refuses, or does not know the secret.
            RemoteProtocolError: It sends something else.
            OSError: The connection is lost.
        """
        if not self.is_set:
            raise ReplicationError(f"this broker cannot log in: {KEY} is not set")
        own = secrets.token_bytes(NONCE_BYTES)
        await _send(sock, Introduction(user=self._user, purpose=purpose, nonce=own))
        challenge = await _read(sock, Challenge)
        if challenge.problem:
            raise ReplicationError(f"it refuses the login: {challenge.problem}")
        meeting = self.meet(purpose, own, challenge.nonce, _binding(sock))
        await _send(sock, Proof(proof=self.proof(meeting, Side.CALLER)))
        verdict = await _read(sock, Verdict)
        if verdict.problem:
            raise ReplicationError(f"it refuses the login: {verdict.problem}")
        if not self.is_proof(meeting, Side.CALLED, verdict.proof):
            raise ReplicationError(f"it does not know the secret that servers share ({KEY})")

    async def judge(self, sock: StreamSocket, purpose: str) -> str:
        """Check the login of the broker at the other end, and prove that this one has the secret.

        Returns:
            The name of a user that could not log in; empty if the login is right. The peer has not
            been told about the failure yet: see :meth:`refuse`.

        Raises:
            RemoteProtocolError: It sends something else.
            OSError: The connection is lost.
        """
        introduction = await _read(sock, Introduction)
        if introduction.purpose != purpose:
            raise RemoteProtocolError(
                f"it wants {introduction.purpose!r}, but this port is for {purpose!r}"
            )
        own = secrets.token_bytes(NONCE_BYTES)
        await _send(sock, Challenge(nonce=own))
        proof = (await _read(sock, Proof)).proof
        user = introduction.user
        meeting = self.meet(purpose, introduction.nonce, own, _binding(sock))
        is_proven = self.is_proof(meeting, Side.CALLER, proof)  # whatever the name
        if not is_proven or user != self._user:
            return user or "nobody"
        await _send(sock, Verdict(proof=self.proof(meeting, Side.CALLED)))
        return ""

    def meet(self, purpose: str, caller: bytes, called: bytes, binding: bytes = b"") -> Meeting:
        """Return the facts that proofs of one connection cover.

        Args:
            purpose: The purpose of the connection.
            caller: The number of the side that connects.
            called: That of the other side.
            binding: A value of the TLS connection.
        """
        return Meeting(purpose, self._user, caller, called, binding)

    def proof(self, meeting: Meeting, side: Side) -> bytes:
        """Return the proof of one side."""
        return meeting.prove(self._secret, side)

    def is_proof(self, meeting: Meeting, side: Side, proof: bytes) -> bool:
        """Tell whether a proof of the other side is right; never if this broker has no secret."""
        return meeting.is_proof(self._secret, side, proof) and self.is_set

    async def refuse(self, sock: StreamSocket) -> None:
        """Tell a broker that its login is wrong; one text for all causes.

        Raises:
            OSError: The connection is lost.
        """
        await _send(sock, Verdict(problem=_REFUSAL))


def _binding(sock: StreamSocket) -> bytes:
    return sock.binding if isinstance(sock, TlsSocket) else b""


async def _send(sock: StreamSocket, frame: Frame) -> None:
    await send_all(sock, encode_login(frame))


async def _read(sock: StreamSocket, kind: type[_Frame]) -> _Frame:
    received = bytearray()
    while True:
        frame = take_login(kind, received) if received else None
        if frame is not None:
            break
        data = await receive(sock, _READ_BYTES)
        if not data:
            raise RemoteProtocolError("it closed the connection during the login")
        received += data
    if received:
        raise RemoteProtocolError("it sent something before its login was answered")
    return frame
