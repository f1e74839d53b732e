"""The warning about servers that everybody who reaches them can use."""

from __future__ import annotations

import ipaddress
from typing import Final

from rocketpost.transport.entrance import EntranceRules

_WARNING: Final = (
    "it listens on {} and checks no user, so everybody who reaches it can read, change and delete "
    "everything: set authenticationEnabled=true and authorizationEnabled=true (`rocketpost secure "
    "init` makes all settings), or listen on 127.0.0.1"
)


def find_exposure(
    bind_address: str, *, authenticates: bool, rules: EntranceRules | None = None
) -> str:
    """Return a warning if other machines can use a server without a login; else an empty text.

    Args:
        bind_address: The address that it listens on; empty for all.
        authenticates: Whether it checks users.
        rules: The rules of its ports; None if they are plain.
    """
    is_certified = rules is not None and rules.certifies_clients
    if authenticates or is_certified or is_loopback(bind_address):
        return ""
    return _WARNING.format(bind_address or "0.0.0.0")


def is_loopback(host: str) -> bool:
    """Tell whether an address is one that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
