"""One place decides what a flush mode asks of a message."""

from __future__ import annotations

from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import (
    Committed,
    Flushed,
    Written,
    rules_for,
)
from rocketpost.store.config import FlushMode

from ..writing import Group, Store


def test_a_flush_mode_stands_for_rules() -> None:
    store = Store()
    assert [type(rule) for rule in rules_for(FlushMode.ASYNC_FLUSH, store)] == [Written]
    assert [type(rule) for rule in rules_for(FlushMode.SYNC_FLUSH, store)] == [Written, Flushed]


def test_rules_begin_where_the_log_is_and_ask_for_what_they_need() -> None:
    store = Store()
    written, flushed = rules_for(FlushMode.SYNC_FLUSH, store)
    store.written_position, store.durable_position = Position(20), Position(10)
    for rule in (written, flushed):
        rule.start()
        rule.pursue()
    assert (written.position, flushed.position, store.flushes) == (20, 10, 1)


def test_the_leader_of_a_group_waits_for_the_commit_in_both_flush_modes() -> None:
    for mode, flushes in ((FlushMode.ASYNC_FLUSH, 0), (FlushMode.SYNC_FLUSH, 1)):
        store, group = Store(), Group(committed=30)
        written, committed = rules_for(mode, store, group)
        assert (type(written), type(committed)) == (Written, Committed)
        store.written_position = Position(20)
        committed.start()
        assert committed.position == 20, "not more than this log has"
        committed.pursue()
        assert (store.flushes, group.growths) == (flushes, 1)
