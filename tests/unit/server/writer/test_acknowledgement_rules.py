"""One place decides what a flush mode asks of a message."""

from __future__ import annotations

from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import Flushed, Written, rules_for
from rocketpost.store.config import FlushMode

from ..writing import Store


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
