"""Bugs of a member's store and broker, to be planted by ``test_named_bugs``."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from rocketpost.broker.topic import TopicTable
from rocketpost.kernel import record_scan
from rocketpost.model.ids import Position
from rocketpost.raft.leader import Leader
from rocketpost.raft.quorum import majority_position
from rocketpost.server.features.registration import RegistrationFeature
from rocketpost.server.group.broker import GroupBroker
from rocketpost.server.group.tables.reader import TableReader
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.deleted_topics import DeletedTopic
from rocketpost.store.dispatch.dispatcher import Dispatcher, _position_of
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica import raw_append
from rocketpost.store.replica.deletions import TopicDeletions
from rocketpost.store.timer.store import TimerStore


def truncate_not_reaching_pending(patch: pytest.MonkeyPatch) -> None:
    """Cut the log, and show messages that were cut off when the next ones are committed."""
    patch.setattr(Dispatcher, "forget_from", lambda *_: None)


def next_offset_not_restored(patch: pytest.MonkeyPatch) -> None:
    def forget(dispatcher: Dispatcher, position: int) -> None:
        pending = dispatcher.pending
        del pending[bisect.bisect_left(pending, position, key=_position_of) :]

    patch.setattr(Dispatcher, "forget_from", forget)


def visible_before_commit(patch: pytest.MonkeyPatch) -> None:
    confirm = MessageStore.confirm

    def show_all(store: MessageStore, position: Position) -> Any:
        store.set_ceiling(store.written_position)
        return confirm(store, store.written_position)

    patch.setattr(MessageStore, "confirm", show_all)


def recovery_shows_the_uncommitted_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberStore, "_find_bound", lambda *_: 2**62)


def relay_answers_from_a_deposed_leader(patch: pytest.MonkeyPatch) -> None:
    """Ask the leader that was known first, for ever."""
    address_of = GroupBroker._leader_address

    def first_address(broker: GroupBroker) -> str | None:
        known: str | None = broker.__dict__.get("first_leader")
        if known is None:
            known = broker.__dict__["first_leader"] = address_of(broker)
        return known

    patch.setattr(GroupBroker, "_leader_address", first_address)


def ticket_of_an_old_term_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def end_term(writer: LogWriter, reason: str) -> None:
        writer.commit()
        if waiting := writer._waiting.drain():
            writer._answer(waiting)
        writer._stop_taking(reason)

    patch.setattr(LogWriter, "end_term", end_term)


def registration_without_state_version(patch: pytest.MonkeyPatch) -> None:
    begin = RegistrationFeature.__init__

    def begin_without(feature: Any, *args: Any, state_version: int = 0, **named: Any) -> None:
        begin(feature, *args, **named)

    patch.setattr(RegistrationFeature, "__init__", begin_without)


def follower_acks_a_batch_with_a_bad_crc(patch: pytest.MonkeyPatch) -> None:
    def scan(*args: Any, **named: Any) -> Any:
        return record_scan.scan_records(*args, **{**named, "verify_crc": False})

    patch.setattr(raw_append, "scan_records", scan)
    patch.setattr(
        raw_append.RawAppender,
        "wants_rows",
        property(lambda _: False, lambda *_: None),
        raising=False,
    )


def locks_forgotten(patch: pytest.MonkeyPatch) -> None:
    apply_table = TableReader._apply_table

    async def apply_others(reader: TableReader, table: Any) -> None:
        if table.name != "locks":
            await apply_table(reader, table)

    patch.setattr(TableReader, "_apply_table", apply_others)


def topic_deletion_applied_at_another_position(patch: pytest.MonkeyPatch) -> None:
    """Delete everything that a follower has by the time at which it learns of the deletion."""
    follow = TopicDeletions.follow

    def follow_late(deletions: TopicDeletions, found: dict[str, DeletedTopic]) -> Any:
        end = int(deletions._parts.commit_log.end)
        later = {
            topic: msgspec.structs.replace(each, position=end) for topic, each in found.items()
        }
        return follow(deletions, later)

    patch.setattr(TopicDeletions, "follow", follow_late)


def snapshot_tables_newer_than_their_position(patch: pytest.MonkeyPatch) -> None:
    """Keep topics that the copy in the log lacks, although it has a position and they have none."""
    follow = TopicTable.follow

    def keep(topics: TopicTable, master: Any, *, gone: Iterable[str] | None = None) -> None:
        follow(topics, master, gone=gone or ())

    patch.setattr(TopicTable, "follow", keep)


def timer_delivered_by_two_leaders(patch: pytest.MonkeyPatch) -> None:
    """Believe the own files of the timer, also if another member has led since."""
    patch.setattr(
        TimerStore, "is_suspect", property(lambda _: False, lambda *_: None), raising=False
    )


def set_shrunk_before_the_group_agreed(patch: pytest.MonkeyPatch) -> None:
    """Count a majority of the members that are heard, instead of all.

    Groups have no controller that keeps a set of members in sync: their set is that of the voters,
    which only a committed record changes.
    """

    def count(leader: Leader) -> None:
        since = leader._core.now - leader._core.config.heartbeat_ticks
        voters = leader._core.members.voters
        heard = {peer for peer, each in leader.progress.items() if each.heard > since} & voters
        position = majority_position(heard | {leader._core.node}, leader._counted)
        if leader._log.terms.term_before(position) == leader._core.term:
            leader._core.commit_to(position)

    patch.setattr(Leader, "count", count)
