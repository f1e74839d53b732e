"""Priorities: each queue of a topic is a level, and the last is the highest. ADR 0020.

A message names its level in a property. It is stored in the queue of that number, or in the last
queue if there are fewer. A topic of the type PRIORITY is popped from its highest level down, and a
retry keeps its level. To the store, and to clients that pull, it is a topic like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeVar

from rocketpost.broker.attributes import MESSAGE_TYPE, PRIORITY
from rocketpost.codec.faults import MessageIllegal
from rocketpost.model import properties as names
from rocketpost.model.topic import TopicConfig

LOWEST: Final = 0
FACTOR: Final = "priority.factor"
FACTOR_MAX: Final = 100
_DIGITS_MAX: Final = 10


class LevelQueue(Protocol):
    """A queue to read."""

    @property
    def retry(self) -> int:
        """Nonzero for a queue of the retry topic."""
        ...

    @property
    def queue_id(self) -> int:
        """Number of the queue, hence its level."""
        ...


P = TypeVar("P", bound=LevelQueue)


def has_levels(config: TopicConfig) -> bool:
    """Tell whether the queues of a topic are levels."""
    return bool(config.attributes) and config.attributes.get(MESSAGE_TYPE) == PRIORITY


def queue_of(properties: Mapping[str, str], config: TopicConfig) -> int | None:
    """Return the queue that a message's properties ask for; None for the sender's choice.

    Raises:
        MessageIllegal: The priority is not a number.
    """
    text = properties.get(names.PRIORITY)
    if text is None:
        return LOWEST if has_levels(config) else None
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise MessageIllegal(f"the priority {text[:40]!r} is not a whole number from 0 up")
    if names.SHARDING_KEY in properties:  # order cannot be kept across levels, so the key wins
        return LOWEST if has_levels(config) else None
    return min(int(text), max(config.write_queue_nums, 1) - 1)


def factor_of(attributes: Mapping[str, str]) -> int:
    """Return the percentage of a group's pops that read by level; others start at random."""
    text = attributes.get(FACTOR, "")
    return min(int(text), FACTOR_MAX) if text.isascii() and text.isdecimal() else FACTOR_MAX


def by_level(places: Iterable[P], *, retry_first: bool) -> list[P]:
    """Return queues from the highest level down, each with the retry queue first or last."""
    return sorted(places, key=lambda each: (-each.queue_id, bool(each.retry) != retry_first))
