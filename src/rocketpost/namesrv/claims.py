"""The rules by which a name server settles conflicting claims to a broker's name, id or address.

A name server has no passwords, so it believes whoever came first for as long as they live. A broker
is alive while its connection is open and it gives signs of life. Meanwhile nobody else gets

- its address: another broker that claims to be reached there, or the same one from another host;
- its id under its name: another address, unless that is a member of the broker's group already and
  was elected by a controller, which its state version shows.

Whoever is refused is told who has the place, and gets it as soon as that one is gone or silent.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from rocketpost.codec.faults import InvalidParameter, ServerError
from rocketpost.model.topic import DataVersion
from rocketpost.namesrv.report import BrokerIdentity

SILENT_MS: Final = 90_000
"""Time for which a broker keeps its place after a sign of life; one comes at least every 60 s."""
MEMBER_MS: Final = 60_000
"""Time for which an address must be a member of a group before it can take another's id."""
STATE_VERSION_MAX: Final = 1_000_000
"""State versions count elections; one beyond this would win for ever."""


@dataclass(slots=True)
class Live:
    """A broker that is registered.

    Args:
        identity: Who it is.
        owner: What it registered through, in practice its connection.
        source: The host that the connection comes from.
        since_ms: Since when it is a member of the group of its name.
        last_ms: When it gave its last sign of life.
        timeout_ms: After how long without one it is removed.
        data_version: The edition of its topics.
        ha_address: Where its replicas fetch the log.
        filter_servers: Its filter servers.
    """

    identity: BrokerIdentity
    owner: Hashable
    source: str
    since_ms: int
    last_ms: int
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    filter_servers: list[str]

    def is_alive(self, now_ms: int) -> bool:
        """Tell whether it keeps its place."""
        return now_ms <= self.last_ms + min(self.timeout_ms, SILENT_MS)

    def is_from(self, owner: Hashable, source: str) -> bool:
        """Tell whether somebody may speak for it: its connection, or another of the same host."""
        return self.owner == owner or self.source == source


def check_address_claim(
    known: Live | None, identity: BrokerIdentity, *, owner: Hashable, source: str, now_ms: int
) -> None:
    """Check that a broker may register its address.

    Args:
        known: Who is registered with that address.
        identity: Who wants to.
        owner: What it registers through.
        source: The host that this comes from.
        now_ms: The time.

    Raises:
        ServerError: Somebody else is reached there, and is alive.
    """
    if known is None or not known.is_alive(now_ms) or known.owner == owner:
        return
    if known.identity[:2] != identity[:2] or known.source != source:
        raise ServerError(
            f"register broker failed: {identity.address} is registered as "
            f"{known.identity.name} by {known.source or 'another connection'}, which is alive"
        )


def check_id_claim(
    holder: Live | None, claimant: Live | None, identity: BrokerIdentity, *,
    state_version: int, owner: Hashable, source: str, now_ms: int,
) -> None:  # fmt: skip
    """Check that a broker may register its id.

    Args:
        holder: Who is registered with that name and id, at another address.
        claimant: What the address that wants it is registered as so far.
        identity: Who wants it.
        state_version: How many elections it knows of.
        owner: What it registers through.
        source: The host that this comes from.
        now_ms: The time.

    Raises:
        InvalidParameter: The state version is none.
        ServerError: Somebody else has it, and is alive.
    """
    if not 0 <= state_version <= STATE_VERSION_MAX:
        raise InvalidParameter(
            f"stateVersion={state_version} is not one of 0 to {STATE_VERSION_MAX}"
        )
    if holder is None or holder.identity.address == identity.address:
        return
    if not holder.is_alive(now_ms):
        return
    is_member = (
        claimant is not None
        and claimant.identity[:2] == identity[:2]
        and claimant.is_from(owner, source)
        and now_ms >= claimant.since_ms + MEMBER_MS
    )
    if is_member and state_version > holder.data_version.state_version:
        return
    raise ServerError(
        f"register broker failed: id {identity.id} of {identity.name} is taken by "
        f"{holder.identity.address}, which is alive; stop that broker, or give this one another "
        "name or id"
    )
