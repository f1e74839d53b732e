"""Changes of the smallest id in a broker group.

While a group has no master, the member with the smallest id acts for it. Brokers that enabled this
are told when another member has become the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class MinBrokerChange(NamedTuple):
    """A change of the smallest id in a broker group, and the members to tell.

    Args:
        name: The broker name that the members share.
        recipients: The addresses of the members to tell.
        id: The smallest id now.
        address: The address of the member with that id.
        offline_address: The address of the member that is gone; None if one has joined.
        ha_address: The address from which the joined member's slaves fetch the log; None if
            one is gone.
    """

    name: str
    recipients: tuple[str, ...]
    id: int
    address: str
    offline_address: str | None = None
    ha_address: str | None = None


def after_joining(
    name: str, before: Mapping[int, str], after: Mapping[int, str], *, ha_address: str
) -> MinBrokerChange | None:
    """Return the change after a member has registered, if it is now the smallest.

    Args:
        name: The broker name.
        before: The addresses by id, before.
        after: The addresses by id, now.
        ha_address: The address from which the new member's slaves fetch the log.
    """
    if not before or min(after) >= min(before):
        return None
    smallest = min(after)
    others = tuple(address for key, address in sorted(after.items()) if key != smallest)
    recipients = others or (after[smallest],)
    return MinBrokerChange(
        name, recipients, smallest, after[smallest], ha_address=ha_address or None
    )


def after_leaving(
    name: str, before: Mapping[int, str], after: Mapping[int, str]
) -> MinBrokerChange | None:
    """Return the change after a member is gone, if it was the smallest of several.

    Args:
        name: The broker name.
        before: The addresses by id, before.
        after: The addresses by id, now.
    """
    if not after or min(after) == min(before):
        return None
    recipients = tuple(address for _, address in sorted(after.items()))
    smallest = min(after)
    gone = before[min(before)]
    return MinBrokerChange(name, recipients, smallest, after[smallest], offline_address=gone)
