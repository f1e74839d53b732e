"""Calls of clients: who calls, and for how long it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rocketpost.proxy.backend import Identity
from rocketpost.proxy.clients import GrpcClient
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.registration import language_of
from rocketpost.proxy.wire.enums import Code

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
DATE_TIME: Final = "x-mq-date-time"
AUTHORIZATION: Final = "authorization"
_CLIENT_ID_LENGTH_MAX: Final = 1024
_WAIT_SECONDS_MAX: Final = 86_400
_READ: Final = frozenset({CLIENT_ID, LANGUAGE, CLIENT_VERSION, DATE_TIME, AUTHORIZATION})
"""The headers that are read. Those that only a server sets are not, so nobody can forge them."""


class Call(NamedTuple):
    """One call of a method."""

    client: GrpcClient
    context: Any
    """The library's object for the call."""
    user: str = ""
    """The user who has proved to be the caller; empty without access control."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds for which the caller waits; None if it does not say."""
        left: float | None = self.context.time_remaining()
        return None if left is None or left > _WAIT_SECONDS_MAX else left


def read_headers(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Return the headers of a call that the proxy reads."""
    found: dict[str, str] = {}
    for key, value in metadata:
        if key in _READ and isinstance(value, str):
            found.setdefault(key, value)
    return found


def identity_of(headers: Mapping[str, str], address: tuple[str, int]) -> Identity:
    """Return the client that makes a call.

    Args:
        headers: The headers of the call.
        address: The peer's address.

    Raises:
        Refusal: The call does not name its client.
    """
    client_id = headers.get(CLIENT_ID, "").strip()
    if not client_id or len(client_id) > _CLIENT_ID_LENGTH_MAX:
        raise Refusal(Code.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing or too long")
    return Identity(
        client_id,
        address,
        language_of(headers.get(LANGUAGE, "")),
        headers.get(CLIENT_VERSION, "")[:64],
    )


def parse_peer(peer: str) -> tuple[str, int]:
    """Return host and port of a peer such as ``ipv4:10.0.0.1:4000`` or ``ipv6:[::1]:4000``."""
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return "127.0.0.1", 0  # a socket of this machine
    return host.strip("[]"), int(port)


def duration_ms(message: Any, field: str) -> int | None:
    """Return an optional duration in milliseconds; None if it is absent."""
    if not message.HasField(field):
        return None
    duration = getattr(message, field)
    ms: int = duration.seconds * 1000 + duration.nanos // 1_000_000
    return ms
