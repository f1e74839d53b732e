"""Descriptors that a forked child gives up: connections and locks of its parent.

A fork copies every descriptor. Were the child to keep the copies, a server would not notice that
the parent has died, and a lock of the parent would outlive it. The child must not use them either:
both processes would write to one stream. So they are replaced, number for number, by the null
device. Nothing is shut down, and the parent does not notice.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Holder(Protocol):
    """An object with descriptors that belong to the process that opened them."""

    def descriptors(self) -> Iterable[int]:
        """Return the numbers of those that are open."""
        ...  # pragma: no cover


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def give_up_in_child(holder: Holder) -> None:
    """Have forked children give up the descriptors that ``holder`` has at the fork."""
    _holders.add(holder)


def _give_up() -> None:
    numbers = [number for holder in list(_holders) for number in holder.descriptors()]
    _holders.clear()
    if not numbers:
        return
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for number in numbers:
            os.dup2(null, number, inheritable=False)
    finally:
        os.close(null)


os.register_at_fork(after_in_child=_give_up)
