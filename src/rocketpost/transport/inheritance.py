"""Release of the parent's descriptors in a forked child.

A fork copies every descriptor. If the child kept the copies of connections and locks, a server
would not notice that the parent has died, and a lock of the parent would outlive it. The child must
not use them either: both processes would write to one stream. So the child replaces them, number
for number, with the null device. Nothing is shut down, and the parent is not affected.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class DescriptorOwner(Protocol):
    """An object with descriptors that belong to the process that opened them."""

    def descriptors(self) -> Iterable[int]:
        """Return the open descriptors."""
        ...


_holders: weakref.WeakSet[DescriptorOwner] = weakref.WeakSet()


def release_in_child(holder: DescriptorOwner) -> None:
    """Make forked children release the descriptors that ``holder`` has at the fork."""
    _holders.add(holder)


def _release_inherited() -> None:
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


os.register_at_fork(after_in_child=_release_inherited)
