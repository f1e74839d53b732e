"""The log writer: what counts, who is told, in which order and in which term."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketpost.errors import StoreBroken, StoreFull, TermEnded
from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import AcknowledgementRule, Flushed, Written
from rocketpost.server.writer.log_writer import NO_TERM, LogWriter
from rocketpost.server.writer.queue_deletion import CommitThenDelete
from rocketpost.testing.waiting import until

from ..writing import DRAFT, Ledger, Senders, Store, log_writer


@pytest.fixture
def store() -> Store:
    return Store()


# Rules.


async def test_written_is_enough_if_it_is_the_only_rule(store: Store) -> None:
    writer = log_writer(store, sync=False)
    senders = Senders(writer)
    senders.send("a")
    senders.send("b")
    assert (store.commits, senders.told()) == (0, [])
    await asyncio.sleep(0)
    assert store.commits == 1, "one write for everybody"
    assert senders.told() == ["stored a", "stored b"]
    assert store.confirmed == [20]
    assert (store.flushes, writer.waits, writer.waiting_count) == (0, False, 0)
    writer.advance(Flushed, Position(20))  # nobody asked
    assert store.confirmed == [20]
    writer.close()


async def test_the_least_of_the_rules_decides(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    senders.send("b")
    await asyncio.sleep(0)
    senders.send("c")
    await asyncio.sleep(0)
    assert (store.flushes, store.confirmed, senders.told()) == (2, [], [])
    assert writer.waiting_count == 3
    writer.advance(Flushed, Position(10))
    assert (store.confirmed, senders.told()) == ([10], ["stored a"])
    writer.advance(Flushed, Position(5))
    writer.advance(Flushed, Position(10))
    assert store.confirmed == [10], "a position never falls"
    writer.advance(Flushed, Position(30))
    assert (store.confirmed, senders.told()) == ([10, 30], ["stored b", "stored c"])
    assert writer.confirmed == 30
    writer.close()


async def test_a_rule_of_another_kind_holds_back_like_the_disk_does(store: Store) -> None:
    class Copied(AcknowledgementRule):
        def start(self) -> None:
            self.position = Position(0)

    writer = LogWriter(
        store=store,  # type: ignore[arg-type]
        rules=[Written(store), Flushed(store), Copied(store)],
        ledger=Ledger(),
        timeout_ms=60_000,
    )
    writer.begin_term(1)
    senders = Senders(writer)
    senders.send("a")
    senders.send("b")
    writer.commit()
    writer.advance(Flushed, Position(20))
    assert senders.told() == []
    writer.advance(Copied, Position(10))
    assert (store.confirmed, senders.told()) == ([10], ["stored a"])
    writer.advance(Copied, Position(20))
    assert senders.told() == ["stored b"]
    writer.close()


async def test_confirmed_messages_are_visible_before_anybody_is_notified(store: Store) -> None:
    writer = log_writer(store, sync=False)
    trace: list[str] = []
    senders = Senders(writer, trace)
    store.confirm = lambda position: trace.append(f"visible {position}")  # type: ignore[assignment,return-value]
    senders.send("a")
    writer.commit()
    assert trace == ["visible 10", "stored a"]
    writer.close()


async def test_slaves_are_told_before_messages_are_shown(store: Store) -> None:
    writer = log_writer(store, sync=True)
    told: list[tuple[int, Position]] = []
    writer.on_growth = lambda end: told.append((end, store.confirmed_position))
    senders = Senders(writer)
    senders.send("a")
    await asyncio.sleep(0)
    assert not told, "it is not flushed"
    writer.advance(Flushed, Position(10))
    assert told == [(10, 0)]
    assert store.confirmed == [10]
    writer.close()


async def test_senders_that_do_not_wait_for_the_disk_are_answered_after_the_write(
    store: Store,
) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    senders.send("b", early=True)
    senders.send("c")
    writer.commit()
    assert (senders.told(), store.confirmed) == (["stored b"], [])
    writer.advance(Flushed, Position(30))
    assert senders.told() == ["stored a", "stored c"]
    writer.close()


# Duplicates.


@pytest.mark.parametrize("sync", [False, True])
async def test_a_duplicate_waits_for_as_much_as_its_original(store: Store, sync: bool) -> None:
    writer = log_writer(store, sync=sync)
    senders = Senders(writer)
    senders.send("a")
    senders.repeat("a again", 10)
    writer.commit()
    assert senders.told() == ([] if sync else ["stored a", "stored a again"])
    senders.repeat("a in haste", 10, early=True)
    writer.commit()
    assert senders.told() == ["stored a in haste"]
    writer.advance(Flushed, Position(10))
    assert senders.told() == (["stored a", "stored a again"] if sync else [])
    senders.repeat("a late", 10)
    writer.commit()
    assert senders.told() == ["stored a late"]
    assert (store.end, store.confirmed) == (10, [10])
    writer.close()


# Who is told.


async def test_clients_and_the_broker_itself_share_one_queue(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders, others = Senders(writer), Senders(writer)
    others.trace = senders.trace
    senders.send("a")
    own = writer.put([DRAFT, DRAFT])
    others.send("b")
    senders.send("c")
    writer.commit()
    assert (store.commits, writer.waiting_count) == (1, 3)
    writer.advance(Flushed, Position(20))
    assert (senders.told(), own.done()) == (["stored a"], False)
    writer.advance(Flushed, Position(50))
    assert senders.told() == ["stored b", "stored c"]
    assert [each.position for each in await own] == [10, 20]
    writer.close()


async def test_a_slow_disk_is_admitted_once(store: Store) -> None:
    writer = log_writer(store, sync=True, timeout_ms=1)
    senders = Senders(writer)
    senders.send("a")
    own = writer.put([DRAFT])
    await until(lambda: senders.trace)
    assert senders.told() == ["late a"]
    writer.advance(Flushed, Position(20))
    assert senders.told() == []
    assert len(await own) == 1, "the broker's own messages have no deadline"
    writer.close()


# Failures.


async def test_sends_that_could_not_be_written_are_refused_and_forgotten(store: Store) -> None:
    ledger = Ledger()
    writer = log_writer(store, sync=False, ledger=ledger)
    senders = Senders(writer)
    senders.send("a")
    own = writer.put([DRAFT])
    senders.repeat("a again", 10)
    store.failing = StoreFull("no room")
    writer.commit()
    assert senders.told() == ["unwritten a: no room", "refused a again: no room"]
    with pytest.raises(StoreFull):
        await own
    store.failing = None
    senders.send("b")
    writer.commit()
    assert (senders.told(), store.confirmed) == (["stored b"], [10])
    assert ledger.told == ["undo", "commit"]
    writer.close()


async def test_a_flush_that_failed_before_the_write_acknowledges_nothing(store: Store) -> None:
    writer = log_writer(store, sync=False)
    senders = Senders(writer)
    senders.send("a")
    store.break_down("EIO")
    writer.commit()
    assert (senders.told(), store.confirmed) == (["unwritten a: EIO"], [])
    writer.close()


async def test_messages_that_the_store_took_back_are_not_acknowledged(store: Store) -> None:
    writer = log_writer(store, sync=False)
    senders = Senders(writer)
    senders.send("a")
    store.end = 0
    writer.commit()
    assert senders.told() == [
        "unwritten a: messages were withdrawn while their sends waited for the write"
    ]
    writer.close()


async def test_a_failed_disk_refuses_what_waits_for_it(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    own, given_up = writer.put([DRAFT]), writer.put([DRAFT])
    writer.commit()
    given_up.cancel()
    thread = threading.Thread(target=store.on_broken, args=("EIO",))
    thread.start()
    thread.join()
    with pytest.raises(StoreBroken, match="EIO"):
        await own
    assert senders.told() == ["refused a: EIO"]
    assert store.confirmed == []
    writer.close()


# Terms.


async def test_a_send_is_refused_when_its_term_ends(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    writer.commit()
    own = writer.put([DRAFT])
    senders.send("b")  # taken, not yet written
    writer.end_term("another broker leads")
    assert (store.commits, store.end) == (2, 30), "what was taken is written, whoever leads"
    assert senders.told() == ["refused a: another broker leads", "refused b: another broker leads"]
    with pytest.raises(TermEnded, match="another broker leads"):
        await own
    await asyncio.sleep(0)
    writer.advance(Flushed, Position(30))
    assert senders.told() == [], "nobody is told twice"
    assert store.confirmed == [30], "but what is in the log is there"
    writer.close()


async def test_confirmed_sends_are_acknowledged_when_a_term_ends(store: Store) -> None:
    writer = log_writer(store, sync=False)
    senders = Senders(writer)
    senders.send("a")
    writer.end_term("another broker leads")
    assert senders.told() == ["stored a"]
    writer.close()


async def test_a_pause_refuses_new_messages_and_answers_older_ones(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    writer.pause("n1 takes over")
    assert store.commits == 1, "what was taken is written"
    with pytest.raises(TermEnded, match="n1 takes over"):
        writer.append(DRAFT)
    with pytest.raises(TermEnded, match="n1 takes over"):
        writer.put([DRAFT])
    writer.advance(Flushed, Position(10))
    assert senders.told() == ["stored a"]
    writer.resume()
    senders.send("b")
    writer.commit()
    writer.end_term("another broker leads")
    writer.resume()
    with pytest.raises(TermEnded, match="another broker leads"):
        writer.append(DRAFT)
    writer.close()


async def test_between_two_terms_nothing_is_taken(store: Store) -> None:
    writer = log_writer(store, sync=False)
    writer.end_term("another broker leads")
    assert writer.term == NO_TERM
    with pytest.raises(TermEnded, match="another broker leads"):
        writer.append(DRAFT)
    with pytest.raises(TermEnded, match="another broker leads"):
        writer.append_batch([DRAFT])
    with pytest.raises(TermEnded, match="another broker leads"):
        writer.put([DRAFT])
    with pytest.raises(AssertionError):
        writer.begin_term(1)
    writer.begin_term(4)
    senders = Senders(writer)
    senders.send("a")
    writer.commit()
    assert (senders.told(), writer.term) == (["stored a"], 4)
    writer.close()


async def test_a_term_begins_where_the_log_is_by_then(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    for name in "abc":
        senders.send(name)
    writer.end_term("another broker leads")
    senders.told()
    # What followed a position was cut, as the other broker never had it.
    store.end = store.written_position = store.durable_position = 10  # type: ignore[assignment]
    writer.begin_term(2)
    assert writer.confirmed == 10
    senders.send("d")
    writer.commit()
    assert senders.told() == []
    writer.advance(Flushed, Position(20))
    assert senders.told() == ["stored d"]
    writer.close()


async def test_messages_confirmed_between_two_terms_are_visible_in_the_next(store: Store) -> None:
    writer = log_writer(store, sync=True)
    Senders(writer).send("a")
    writer.close()
    store.durable_position = Position(10)
    assert store.confirmed == []
    log_writer(store, sync=True).close()
    assert store.confirmed == [10]


async def test_a_send_of_another_term_is_a_bug(store: Store) -> None:
    writer = log_writer(store, sync=False)
    senders = Senders(writer)
    old = senders.pending("a", [writer.append(DRAFT)])
    writer.end_term("another broker leads")
    writer.begin_term(2)
    writer.submit(old)
    with pytest.raises(AssertionError):
        writer.commit()
    writer.close()


# The flusher's thread, and the end.


async def test_the_flusher_thread_comes_in_by_its_own_door(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    writer.commit()
    thread = threading.Thread(target=store.on_durable, args=(Position(10),))
    thread.start()
    thread.join()
    assert senders.told() == []
    await asyncio.sleep(0)
    assert senders.told() == ["stored a"]
    writer.close()


async def test_a_closed_writer_takes_nothing_and_leaves_the_store_alone(store: Store) -> None:
    writer = log_writer(store, sync=True)
    senders = Senders(writer)
    senders.send("a")
    writer.close()
    assert (store.commits, senders.told()) == (1, ["refused a: the broker is shutting down"])
    writer.advance(Flushed, Position(10))
    assert store.confirmed == []
    with pytest.raises(TermEnded, match="shutting down"):
        writer.put([DRAFT])


@pytest.mark.parametrize("sync", [False, True])
async def test_listeners_are_notified_of_visible_messages_before_senders(
    store: Store, sync: bool
) -> None:
    writer = log_writer(store, sync=sync)
    trace: list[str] = []
    senders = Senders(writer, trace)
    writer.arrival_listeners = [
        lambda messages: trace.append(f"first {len(messages)}"),
        lambda messages: trace.append(f"second {len(messages)}"),
    ]
    senders.send("a")
    senders.send("b")
    writer.commit()
    heard = ["first 2", "second 2", "stored a", "stored b"]
    assert trace == ([] if sync else heard)
    writer.advance(Flushed, Position(20))
    assert trace == heard
    writer.advance(Written, Position(20))
    assert trace == heard  # no arrival is reported twice
    writer.close()


async def test_a_closed_writer_gets_no_more_reports_of_the_store(store: Store) -> None:
    writer = log_writer(store, sync=True)
    assert writer.fail_from_thread == store.on_broken
    writer.close()
    assert writer.fail_from_thread != store.on_broken
    store.on_durable(Position(10))


@pytest.mark.parametrize("sync", [False, True])
def test_a_closed_loop_does_not_hurt_the_flusher(store: Store, sync: bool) -> None:
    async def make() -> LogWriter:
        return log_writer(store, sync=sync)

    asyncio.run(make())
    store.on_durable(Position(1))
    store.on_broken("EIO")
    assert store.confirmed == []


async def test_queues_are_dropped_after_what_was_sent_is_written(store: Store) -> None:
    writer = log_writer(store, sync=False)
    trace: list[str] = []
    senders = Senders(writer, trace)
    store.delete_queues = lambda topic: trace.append(f"delete {topic}")  # type: ignore[attr-defined]
    senders.send("a")
    deleter = CommitThenDelete(store, commit=writer.commit)  # type: ignore[arg-type]
    await deleter.delete_queues("T")
    assert trace == ["stored a", "delete T"]
    writer.close()
