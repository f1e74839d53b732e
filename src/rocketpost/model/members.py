"""Members of a group of brokers that elects its leader."""

from __future__ import annotations

from typing import Final, NamedTuple

TERM_MAX: Final = 2**31 - 1
"""Largest term; RocketMQ's files have 32 bits for it."""
MEMBER_COUNT_MAX: Final = 9
"""Largest number of members of a group, learners included."""
MEMBER_NAME_BYTES_MAX: Final = 63
MEMBER_ADDRESS_BYTES_MAX: Final = 127


class Member(NamedTuple):
    """One broker of a group."""

    name: str
    """Id within the group, such as ``n0``."""
    address: str
    """Host and port at which it listens to the other members."""
    is_voter: bool = True
    """Whether it votes and counts towards a majority; a learner only gets the log."""


class Configuration(NamedTuple):
    """The members of a group, and the position at which the record that states them ends."""

    position: int
    members: tuple[Member, ...]
