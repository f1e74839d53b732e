"""The parts of a broker that its group member uses: services and settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rocketpost.server.group.link_values import Protection
from rocketpost.server.group.office import Leadership
from rocketpost.store.config import FlushMode, StoreConfig


class BrokerSide(NamedTuple):
    """Services of a broker for its member."""

    lead: Callable[[Leadership], Awaitable[None]]
    """Opens a term of office as leader."""
    follow: Callable[[], Awaitable[None]]
    """Opens one as follower."""
    on_leader: Callable[[str | None], None]
    """Called with the id of the leader, or None if there is none."""
    replace_log: Callable[[str], None]
    """Called with the id of the leader whose tables and log must replace this member's."""


class MemberSettings(NamedTuple):
    """Settings of the broker that concern its group."""

    flush_mode: FlushMode
    """Whether bytes must be flushed before they count."""
    host: bytes
    """Packed address of this broker."""
    address: str
    """Address at which clients reach this broker."""
    equal: dict[str, str]
    """Settings that must be equal on all members."""
    store: Callable[[], StoreConfig]
    """Returns the settings of the store."""
    protection: Protection | None = None
    """TLS and logins of links; none if None."""
