"""How the members of a group share the queues of a topic: RocketMQ's two plain ways.

Clients compute their own share, and a broker computes it for those that ask; all compute alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def average_share(queues: Sequence[T], index: int, member_count: int) -> list[T]:
    """Return the block of member ``index``: as equal as can be, the first ones are longer."""
    share, rest = divmod(len(queues), member_count)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def circle_share(queues: Sequence[T], index: int, member_count: int) -> list[T]:
    """Return what member ``index`` gets of queues that are dealt out like cards."""
    return list(queues[index::member_count])


def java_order(text: str) -> bytes:
    """Return a key that sorts texts as Java does, by UTF-16 units: all members sort alike."""
    return text.encode("utf-16-be", "surrogatepass")
