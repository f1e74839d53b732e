"""Access control of the gRPC port: the broker's users and rules.

A call is signed by HMAC-SHA1 of its date header, with the secret of the user as key:

    authorization: MQv2-HMAC-SHA1 Credential=user, SignedHeaders=x-mq-date-time, Signature=hex

The date is signed as it is written. Clients write it in local time, so that it is no proof against
replay; use TLS.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rocketpost.access.failures import DELAY_SECONDS
from rocketpost.access.words import Kind
from rocketpost.codec.faults import NoPermission
from rocketpost.proxy.backend import Identity
from rocketpost.proxy.calls import AUTHORIZATION, DATE_TIME, read_headers
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.rights import Right
from rocketpost.proxy.wire.enums import Code
from rocketpost.server.access.gate import Gate, LoginFailed
from rocketpost.server.routes.access import group_need, topic_need

_HEADER_LENGTH_MAX: Final = 4096
_NEEDS: Final = {Kind.TOPIC: topic_need, Kind.GROUP: group_need}


class Signature(NamedTuple):
    """The signature of a call."""

    user: str
    digest: bytes
    date: bytes

    def is_made_with(self, secret: bytes) -> bool:
        """Tell whether it was made with a secret."""
        made = hmac.digest(secret, self.date, "sha1")
        return hmac.compare_digest(made, self.digest)


def read_signature(headers: Mapping[str, str]) -> Signature | None:
    """Return the signature of a call; None if it has none, or a malformed one."""
    text, date = headers.get(AUTHORIZATION, ""), headers.get(DATE_TIME, "")
    if not date or len(text) > _HEADER_LENGTH_MAX or len(date) > _HEADER_LENGTH_MAX:
        return None
    _, _, rest = text.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    # Go adds the name of the service after a slash.
    user = parts.get("Credential", "").partition("/")[0]
    try:
        digest = bytes.fromhex(parts.get("Signature", ""))
    except ValueError:
        return None
    return Signature(user, digest, date.encode()) if user and digest else None


class LocalGuard:
    """Checks calls by the gate of the broker. Belongs to the event loop.

    Args:
        gate: Returns the gate; None if access control is off.
    """

    def __init__(self, gate: Callable[[], Gate | None]) -> None:
        self._gate = gate

    @property
    def is_on(self) -> bool:
        """Whether calls are checked at all."""
        return self._gate() is not None

    def is_signed(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Tell whether the headers of a call prove a user, or need not; nothing is noted of it."""
        gate = self._gate()
        if gate is None:
            return True
        signature = read_signature(read_headers(metadata))
        return signature is not None and gate.is_login(signature.user, signature.is_made_with)

    def admit(self, identity: Identity, headers: Mapping[str, str], method: str) -> str:
        """Return the user who makes a call; empty if access control is off.

        Raises:
            Refusal: The call is not signed, or not by an enabled user.
        """
        gate = self._gate()
        if gate is None:
            return ""
        signature = read_signature(headers)
        user = signature.user if signature is not None else ""
        try:
            gate.admit_call(
                user,
                signature.is_made_with if signature is not None else _never,
                source=identity.address[0],
                method=method,
            )
        except LoginFailed as failure:
            if failure.delay:
                gate.failures.note_answer(failure.address)
            delay = DELAY_SECONDS if failure.delay is None else failure.delay
            raise Refusal(Code.UNAUTHORIZED, failure.remark, delay=delay) from None
        return user

    def check(self, identity: Identity, user: str, rights: list[Right], method: str) -> None:
        """Check that a user has all rights that a call needs.

        Raises:
            Refusal: One is missing.
        """
        gate = self._gate()
        if gate is None:
            return
        # As for requests: a retry topic counts as its group, and no name as every name.
        needs = [_NEEDS[each.kind](each.name, each.actions) for each in rights]
        try:
            gate.check_call(user, needs, source=identity.address[0], method=method)
        except NoPermission as refused:
            raise Refusal(Code.UNAUTHORIZED, refused.remark) from None


def _never(secret: bytes) -> bool:
    return False
