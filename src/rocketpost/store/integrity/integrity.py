"""Detection of damage while a store is open: checks of reads, and the scrub."""

from __future__ import annotations

from collections.abc import Callable

from rocketpost.model.clock import Clock
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.integrity.read_check import ReadCheck
from rocketpost.store.integrity.record_reader import RecordReader
from rocketpost.store.integrity.scrub import Scrub
from rocketpost.store.integrity.scrub_entries import EntryCheck
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.contents import StoreContents


class Integrity:
    """Owns the checks of records that are read, and the scrub of all records."""

    def __init__(
        self,
        config: StoreConfig,
        contents: StoreContents,
        *,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        durable: Callable[[], int],
        clock: Clock,
    ) -> None:
        delays_ms = parse_delay_levels(config.delay_levels)
        segments, queues, damage = contents.segments, contents.queues, contents.damage
        self.check = ReadCheck(
            commit_log=commit_log,
            segments=segments,
            queues=queues,
            damage=damage,
            delays_ms=delays_ms,
            clock=clock,
            interval_ms=config.read_check_interval_ms,
            require_checksum=config.require_checksum,
        )
        self.reader = RecordReader(
            commit_log, dispatcher, self.check, require_checksum=config.require_checksum
        )
        self.scrub = Scrub(
            config,
            contents.files,
            contents.layout.scrub,
            segments=segments,
            entries=EntryCheck(
                contents.files,
                segments=segments,
                queues=queues,
                deleted_topics=contents.deleted_topics,
                delays_ms=delays_ms,
                visible_end=lambda: dispatcher.position,
            ),
            damage=damage,
            durable=durable,
            clock=clock,
        )

    @property
    def mended_count(self) -> int:
        """Number of damaged queue entries mended since the start."""
        return self.check.mended_count + self.scrub.mended_count

    def lower(self, position: int) -> None:
        """Forget the records after ``position``, where the log was cut."""
        self.check.start_at(position)
        self.scrub.lower_from_thread(position)

    def configure(self, config: StoreConfig) -> None:
        """Apply settings that may change while the store is open."""
        self.check.interval_ms = config.read_check_interval_ms
        self.scrub.configure(config)
