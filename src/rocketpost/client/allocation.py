"""Strategies that share out the queues of a topic among the members of a group.

Every member computes its own share from the same sorted lists, so all must compute alike: these are
RocketMQ's algorithms to the letter. A strategy is a callable of this shape; ``name`` is what
brokers and other clients call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rocketpost.model.route import MessageQueue


class AllocationStrategy(Protocol):
    """Decides which queues are ours."""

    @property
    def name(self) -> str:
        """The strategy's name on the wire."""
        ...  # pragma: no cover

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of ``client_id``; both sequences are sorted and not empty."""
        ...  # pragma: no cover


class Average:
    """Contiguous blocks of as equal a size as can be; the first members get the longer ones."""

    name = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of ``client_id``."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        share, rest = divmod(len(queues), len(members))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AverageByCircle:
    """Queues dealt out like cards."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every queue that ``client_id`` is dealt."""
        if client_id not in members:
            return []
        return list(queues[members.index(client_id) :: len(members)])
