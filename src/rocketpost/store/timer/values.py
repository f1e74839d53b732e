"""Values that pass between the timer's files and those who use them."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.store.timer.checkpoint import Exact, Java, Journal
from rocketpost.store.timer.log import Unsynced
from rocketpost.store.timer.wheel import NOWHERE


class Item(NamedTuple):
    """A message that is to wait: the one at ``position``, in a slot, until it is due."""

    slot_ms: int
    due_ms: int
    magic: int
    position: int
    size: int
    topic_hash: int


class Cursor(NamedTuple):
    """In the slot that is read, everything up to here is delivered."""

    due_ms: int = 0
    position: int = NOWHERE


class Save(NamedTuple):
    """A state, ready to be made durable."""

    java: Java
    exact: Exact
    journal: Journal
    unsynced: Unsynced
