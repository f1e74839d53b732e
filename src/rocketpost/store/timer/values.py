"""Values that pass between the timer's files and their users."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.store.timer.checkpoint import ExactFields, JavaFields, Journal
from rocketpost.store.timer.log import Unsynced
from rocketpost.store.timer.wheel import NOWHERE


class Item(NamedTuple):
    """A message to add: the one at ``position``, which waits in a slot until it is due."""

    slot_ms: int
    due_ms: int
    magic: int
    position: int
    size: int
    topic_hash: int


class Cursor(NamedTuple):
    """Last delivered message of the slot being read."""

    due_ms: int = 0
    position: int = NOWHERE


class Save(NamedTuple):
    """A state to be made durable."""

    java: JavaFields
    exact: ExactFields
    journal: Journal
    unsynced: Unsynced
