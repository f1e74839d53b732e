"""Rules for conflicting claims to a broker's name, id or address.

A name server has no passwords, so the first broker keeps its claims for as long as it is alive. A
broker is alive while its connection is open and its heartbeats come. Meanwhile no other broker gets

- its address: neither another broker nor the same one from another host;
- its id under its name: no other address, unless it is already a member of the broker's group and
  was elected, which its state version shows. It is a member if it has been one for a while, or for
  as long as the broker that has the id: the members of a new group start together. A member that
  was away, for a restart or because it was cut off, is one for as long as before.

A refusal says who holds the claim; the refused broker gets it once the holder is gone or silent.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from rocketpost.codec.faults import InvalidParameter, ServerError
from rocketpost.model.topic import DataVersion
from rocketpost.namesrv.report import BrokerIdentity

SILENT_MS: Final = 90_000
"""Time for which a broker keeps its claims after a heartbeat; one comes at least every 60 s."""
MEMBER_MS: Final = 10_000
"""Time for which an address must have been a member before it can take another's id.

One that became a member at most so long after the holder of the id need not wait.
"""
PAST_MS: Final = 3_600_000
"""Time for which a member that is gone is remembered."""
PAST_COUNT_MAX: Final = 1000
STATE_VERSION_MAX: Final = 1_000_000
"""Maximum state version, which counts elections; a larger one would win for ever."""


@dataclass(slots=True)
class LiveBroker:
    """A registered broker.

    Args:
        identity: Its cluster, name, id and address.
        owner: The connection through which it registered.
        source: The host from which the connection comes.
        since_ms: When it became a member of the group of its name.
        last_ms: The time of its last heartbeat or registration.
        timeout_ms: The silence after which it is removed.
        data_version: The version of its topics.
        ha_address: The address from which its replicas fetch the log.
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
        """Tell whether it keeps its claims."""
        return now_ms <= self.last_ms + min(self.timeout_ms, SILENT_MS)

    def is_from(self, owner: Hashable, source: str) -> bool:
        """Tell whether a request comes from its connection, or from another of the same host."""
        return self.owner == owner or self.source == source


class PastMembers:
    """Remembers brokers that are gone, so that those that come back are members as before."""

    def __init__(self) -> None:
        self._by_address: dict[str, LiveBroker] = {}

    def keep(self, gone: LiveBroker) -> None:
        """Remember a broker."""
        self._by_address.pop(gone.identity.address, None)
        self._by_address[gone.identity.address] = gone
        if len(self._by_address) > PAST_COUNT_MAX:
            del self._by_address[next(iter(self._by_address))]

    def since_ms(self, identity: BrokerIdentity, *, source: str, now_ms: int) -> int:
        """Return since when a broker that registers now has been a member of its group.

        Only the same host can go on with what an address was before.
        """
        gone = self._by_address.pop(identity.address, None)
        if gone is None or gone.source != source or now_ms > gone.last_ms + PAST_MS:
            return now_ms
        return gone.since_ms if gone.identity[:2] == identity[:2] else now_ms


def check_address_claim(
    known: LiveBroker | None, identity: BrokerIdentity, *, owner: Hashable, source: str, now_ms: int
) -> None:
    """Check that a broker may register its address.

    Args:
        known: The broker that is registered with that address.
        identity: The claimant.
        owner: The connection through which it registers.
        source: The host from which the request comes.
        now_ms: The current time.

    Raises:
        ServerError: Another live broker has the address.
    """
    if known is None or not known.is_alive(now_ms) or known.owner == owner:
        return
    if known.identity[:2] != identity[:2] or known.source != source:
        raise ServerError(
            f"register broker failed: {identity.address} is registered as "
            f"{known.identity.name} by {known.source or 'another connection'}, which is alive"
        )


def check_id_claim(
    holder: LiveBroker | None, claimant: LiveBroker | None, identity: BrokerIdentity, *,
    state_version: int, owner: Hashable, source: str, now_ms: int,
) -> None:  # fmt: skip
    """Check that a broker may register its id.

    Args:
        holder: The broker that is registered with that name and id, at another address.
        claimant: The present registration of the claiming address.
        identity: The claimant.
        state_version: The number of elections that it knows of.
        owner: The connection through which it registers.
        source: The host from which the request comes.
        now_ms: The current time.

    Raises:
        InvalidParameter: The state version is out of range.
        ServerError: Another live broker has the id.
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
        and claimant.since_ms <= max(now_ms - MEMBER_MS, holder.since_ms + MEMBER_MS)
    )
    if is_member and state_version > holder.data_version.state_version:
        return
    raise ServerError(
        f"register broker failed: id {identity.id} of {identity.name} is taken by "
        f"{holder.identity.address}, which is alive; stop that broker, or give this one another "
        "name or id"
    )
