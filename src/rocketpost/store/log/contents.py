"""The contents of a store: its log, everything that is derived from it, and where both are."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import FileSystem
from rocketpost.store.index.key_index import KeyIndex
from rocketpost.store.integrity.damage import DamageRegister
from rocketpost.store.layout import Layout
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.table import QueueTable


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The parts of a store that its recovery, checks, checkpoints and cleaning work on."""

    files: FileSystem
    layout: Layout
    segments: SegmentedLog
    queues: QueueTable
    index: KeyIndex | None
    """The key index; None if it is turned off."""
    deleted_topics: DeletedTopics
    damage: DamageRegister
