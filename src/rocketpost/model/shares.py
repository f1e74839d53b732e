"""RocketMQ's two basic ways of sharing a topic's queues among the members of a group.

Clients compute their own share, and brokers compute it on request; all must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def average_share(queues: Sequence[T], index: int, member_count: int) -> list[T]:
    """Return the block of member ``index``; blocks differ by one at most, longer ones first."""
    share, rest = divmod(len(queues), member_count)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def circle_share(queues: Sequence[T], index: int, member_count: int) -> list[T]:
    """Return the queues of member ``index`` when they are dealt out round robin."""
    return list(queues[index::member_count])


def java_order(text: str) -> bytes:
    """Return a sort key for texts in Java's order, by UTF-16 units, which all members share."""
    return text.encode("utf-16-be", "surrogatepass")
