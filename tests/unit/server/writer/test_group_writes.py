"""The log writer of a group's leader: what is shown, answered, and refused."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import OutcomeUnknown, StoreBroken, StoreFull, TermEnded
from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import Committed, Flushed
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.pending_sends import refusal_code
from rocketpost.testing.waiting import until

from ..writing import DRAFT, Group, Ledger, Senders, Store, log_writer

PERHAPS = "the message may or may not be stored"


def commit_to(store: Store, writer: LogWriter, position: int) -> None:
    """Have the group commit what the leader has written."""
    assert position <= store.written_position
    writer.advance(Committed, Position(position))


@pytest.mark.parametrize("sync", [False, True])
async def test_a_message_is_shown_and_answered_when_it_is_committed(sync: bool) -> None:
    store, group = Store(), Group()
    writer = log_writer(store, sync=sync, group=group)
    senders = Senders(writer)
    senders.send("a")
    senders.send("b", early=True)
    await asyncio.sleep(0)
    assert (store.commits, store.flushes, group.growths) == (1, int(sync), 1)
    writer.advance(Flushed, Position(20))  # the own disk decides nothing
    assert (senders.told(), store.confirmed) == ([], [])
    commit_to(store, writer, 10)
    assert (senders.told(), store.confirmed) == (["stored a"], [10])
    commit_to(store, writer, 20)
    assert (senders.told(), store.confirmed) == (["stored b"], [10, 20])
    writer.close()


async def test_a_commit_within_the_report_of_growth_answers_the_same_sends() -> None:
    """A group of one commits as soon as it is told."""
    store, group = Store(), Group()
    writer = log_writer(store, sync=False, group=group)
    senders = Senders(writer)
    group.note_growth = lambda: commit_to(store, writer, store.end)  # type: ignore[method-assign]
    senders.send("a")
    writer.commit()
    assert senders.told() == ["stored a"]
    senders.repeat("a again", 10, early=True)
    writer.commit()
    assert senders.told() == ["stored a again"]
    writer.close()


async def test_a_duplicate_waits_for_the_commit_of_its_original() -> None:
    store, group = Store(), Group()
    writer = log_writer(store, sync=False, group=group)
    senders = Senders(writer)
    senders.send("a")
    writer.commit()
    senders.repeat("a in haste", 10, early=True)
    writer.commit()
    assert senders.told() == []
    commit_to(store, writer, 10)
    assert senders.told() == ["stored a", "stored a in haste"]
    writer.close()


async def test_the_end_of_a_term_leaves_the_outcome_of_waiting_sends_open() -> None:
    store, group = Store(), Group()
    writer = log_writer(store, sync=False, group=group)
    senders = Senders(writer)
    senders.send("a")
    writer.commit()
    senders.send("b")  # not even written yet
    done = writer.put([DRAFT])
    writer.end_term("another member leads")
    reason = f"another member leads; {PERHAPS}"
    assert senders.told() == [f"refused a: {reason}", f"refused b: {reason}"]
    with pytest.raises(OutcomeUnknown):
        await done
    commit_to(store, writer, store.end)
    assert senders.told() == [], "no answer after the end of its term"
    with pytest.raises(TermEnded):
        writer.append(DRAFT)
    writer.close()


async def test_a_send_that_is_not_committed_in_time_gets_an_error() -> None:
    store, group = Store(), Group()
    writer = log_writer(store, sync=False, group=group, timeout_ms=10)
    senders = Senders(writer)
    senders.send("a")
    await until(lambda: senders.trace)
    assert senders.told() == [f"refused a: a majority of the group has not answered; {PERHAPS}"]
    commit_to(store, writer, 10)
    assert (store.confirmed, senders.told()) == ([10], [])
    writer.close()


async def test_reports_of_the_store_stay_with_the_group() -> None:
    store = Store()
    heard: list[int] = []
    store.report_to(on_durable=heard.append)
    writer = log_writer(store, sync=True, group=Group())
    store.on_durable(Position(10))
    writer.close()
    store.on_durable(Position(20))
    assert heard == [10, 20]


async def test_a_message_is_unwritten_only_if_the_store_took_it_back() -> None:
    store, ledger = Store(), Ledger()
    writer = log_writer(store, sync=True, group=Group(), ledger=ledger)
    senders = Senders(writer)
    senders.send("a")
    store.failing = StoreFull("no room")
    writer.commit()
    assert senders.told() == ["unwritten a: no room"]
    store.failing = None
    senders.send("b")
    store.break_down("a flush failed")
    writer.commit()  # written before the failure is noticed: peers may get it after a restart
    assert senders.told() == [f"unwritten b: a flush failed; {PERHAPS}"]
    assert ledger.told == ["undo", "undo"]
    writer.close()


def test_the_code_of_a_refusal_tells_whether_the_message_may_be_stored() -> None:
    assert refusal_code(OutcomeUnknown("")) is ResponseCode.SYSTEM_ERROR
    for error in (TermEnded(""), StoreFull(""), StoreBroken("")):
        assert refusal_code(error) is ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_wait_for_what_is_written_ends_with_the_commit_or_the_term() -> None:
    store, group = Store(), Group()
    writer = log_writer(store, sync=False, group=group)
    senders = Senders(writer)
    assert await writer.wait_kept(), "there is nothing"
    senders.send("a")
    writer.commit()
    first = asyncio.create_task(writer.wait_kept())
    await asyncio.sleep(0)
    writer.commit()
    assert not first.done()
    commit_to(store, writer, 10)
    assert await first
    assert await writer.wait_kept()
    senders.send("b")
    writer.commit()
    second = asyncio.create_task(writer.wait_kept())
    await asyncio.sleep(0)
    writer.end_term("another member leads")
    assert not await second
    assert not await writer.wait_kept()
    writer.close()


async def test_a_single_broker_keeps_what_it_has_written() -> None:
    store = Store()
    writer = log_writer(store, sync=True)
    Senders(writer).send("a")
    writer.commit()
    assert await writer.wait_kept()
    writer.close()
