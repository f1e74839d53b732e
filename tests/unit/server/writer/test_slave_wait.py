"""Answers that wait for slaves: who waits, for how long, and what is said in the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import Flushed
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.replica_demand import ReplicaPolicy
from rocketpost.testing.waiting import until

from ..writing import DRAFT, Senders, Slaves, Store, log_writer


class Master:
    """A SYNC_MASTER with two replicas, and its slaves."""

    def __init__(self, *positions: int, sync: bool = False, **more: object) -> None:
        self.store = Store()
        self.slaves = Slaves(*positions)
        self.writer: LogWriter = log_writer(
            self.store,
            sync=sync,
            slaves=self.slaves,
            **more,  # type: ignore[arg-type]
        )
        self.senders = Senders(self.writer)
        self.told = self.senders.told

    def send(self, *names: str, early: bool = False) -> None:
        for name in names:
            self.senders.send(name, early=early)
        self.writer.commit()

    def report(self, *positions: int) -> None:
        self.slaves.positions = list(positions)
        self.writer.slaves_changed()


async def test_one_report_answers_all_sends_before_it_and_visibility_waits_for_none() -> None:
    master = Master(0)
    master.send("a", "b")
    master.send("c")
    assert (master.store.confirmed, master.told()) == ([20, 30], [])
    assert (master.writer.waiting_count, master.writer.awaiting_slaves_count) == (0, 3)
    master.report(10)
    assert master.told() == ["stored a"]
    master.report(10)
    master.report(30)
    assert master.told() == ["stored b", "stored c"]
    assert master.store.confirmed == [20, 30]
    master.writer.close()


async def test_the_position_that_enough_slaves_have_counts() -> None:
    master = Master(0, 0, 0, policy=ReplicaPolicy(replicas=3, gap_bytes=1000))
    master.send("a", "b")
    master.report(20, 0, 0)
    assert master.told() == []
    master.report(20, 0, 10)
    assert master.told() == ["stored a"]
    master.report(20, 20, 10)
    assert master.told() == ["stored b"]
    master.report()  # what slaves had once stays acknowledged
    master.writer.close()


async def test_one_replica_is_the_master_itself() -> None:
    master = Master(policy=ReplicaPolicy(replicas=1, gap_bytes=1000))
    master.send("a")
    assert master.told() == ["stored a"]
    master.writer.close()


async def test_with_sync_flush_a_send_needs_both() -> None:
    master = Master(0, sync=True)
    master.send("a", "b")
    master.report(20)
    assert (master.told(), master.store.confirmed) == ([], [])
    master.writer.advance(Flushed, Position(20))
    assert master.told() == ["stored a", "stored b"]
    master.send("c")
    master.writer.advance(Flushed, Position(30))
    assert (master.told(), master.store.confirmed) == ([], [20, 30])
    master.report(30)
    assert master.told() == ["stored c"]
    master.writer.close()


async def test_sends_that_wait_for_the_write_only_wait_for_no_slave() -> None:
    master = Master(0)
    master.send("a", early=True)
    assert master.told() == ["stored a"]
    master.senders.send("b")
    master.send("c", early=True)
    assert master.told() == ["stored c"]
    own = master.writer.put([DRAFT])
    master.writer.commit()
    assert len(await own) == 1, "the broker's own messages wait for no slave"
    master.report(40)
    assert master.told() == ["stored b"]
    master.writer.close()


async def test_without_a_slave_in_sync_the_answer_comes_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    master = Master(policy=ReplicaPolicy(replicas=2, gap_bytes=30))
    master.send("a")
    master.send("b")
    assert master.told() == ["no slave a", "no slave b"]
    assert len(caplog.messages) == 1, "said once, not for each send"
    master.report(0)
    master.send("c", "d")  # now the slave is 40 bytes behind
    assert master.told() == ["no slave c", "no slave d"]
    master.report(20)
    master.send("e")
    assert master.told() == ["no slave e"]
    master.report(50)
    master.send("f")
    assert master.told() == []
    assert caplog.messages[-1] == "enough slaves are in sync: needed=1"
    master.report()  # a slave that is lost may come back in time
    master.report(60)
    assert master.told() == ["stored f"]
    assert master.store.confirmed == [10, 20, 40, 50, 60]
    master.writer.close()


async def test_with_sync_flush_there_is_no_answer_before_the_flush() -> None:
    master = Master(sync=True)
    master.send("a")
    assert master.told() == []
    master.writer.advance(Flushed, Position(10))
    assert master.told() == ["no slave a"]
    master.writer.close()


async def test_a_slave_that_is_silent_is_admitted_once(caplog: pytest.LogCaptureFixture) -> None:
    master = Master(0, slave_timeout_ms=1)
    master.send("a", "b")
    master.send("c")
    await until(lambda: len(master.senders.trace) == 3)
    assert master.told() == ["late slave a", "late slave b", "late slave c"]
    assert "slaves are slow" in caplog.text
    master.report(30)
    assert master.told() == []
    master.writer.set_slave_timeout(60_000)
    master.send("d")
    master.report(40)
    assert master.told() == ["stored d"]
    master.writer.close()


@pytest.mark.parametrize(("positions", "answer"), [((0,), "late"), ((), "no slave")])
async def test_a_slow_disk_is_named_unless_there_is_no_slave(
    positions: tuple[int, ...], answer: str
) -> None:
    master = Master(sync=True, timeout_ms=1)
    master.send("a")
    master.report(*positions)
    own = master.writer.put([DRAFT])
    await until(lambda: master.senders.trace)
    assert master.told() == [f"{answer} a"]
    assert not own.done()
    master.writer.advance(Flushed, Position(20))
    assert len(await own) == 1
    assert master.told() == []
    master.writer.close()


async def test_a_duplicate_waits_for_the_slaves_of_its_original() -> None:
    master = Master(0)
    master.send("a")
    master.senders.repeat("a again", 10)
    master.senders.repeat("a in haste", 10, early=True)
    master.writer.commit()
    assert master.told() == ["stored a in haste"]
    master.report(10)
    assert master.told() == ["stored a", "stored a again"]
    master.senders.repeat("a late", 10)
    master.writer.commit()
    assert master.told() == ["stored a late"]
    master.writer.close()


async def test_answers_of_the_broker_can_wait_for_slaves() -> None:
    master = Master(0, slave_timeout_ms=60_000)
    await master.writer.put([DRAFT])
    waiting = asyncio.ensure_future(master.writer.wait_for_slaves())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert master.writer.awaiting_slaves_count == 0, "it is no client's send"
    master.report(10)
    await waiting
    await master.writer.wait_for_slaves()
    master.report()
    await master.writer.put([DRAFT])
    await master.writer.wait_for_slaves()  # there is nobody to wait for
    master.writer.set_slave_timeout(1)
    master.report(10)
    await master.writer.wait_for_slaves()  # not for ever
    master.writer.close()
    alone = log_writer(Store(), sync=False)
    await alone.wait_for_slaves()
    alone.slaves_changed()
    alone.set_slave_timeout(1)
    alone.close()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_waits_for_slaves_at_the_end_is_stored_all_the_same(is_closed: bool) -> None:
    master = Master(0)
    master.send("a")
    if is_closed:
        master.writer.close()
    else:
        master.writer.end_term("another broker leads")
    assert master.told() == ["late slave a"]
    master.report(10)
    assert master.told() == []
    master.writer.close()


async def test_a_broken_disk_does_not_refuse_what_is_flushed_already() -> None:
    master = Master(0, sync=True)
    master.send("a")
    master.writer.advance(Flushed, Position(10))
    master.send("b")
    master.writer.fail("EIO")
    assert master.told() == ["refused b: EIO"]
    master.report(10)
    assert master.told() == ["stored a"]
    master.writer.close()


async def test_a_group_with_an_acting_master_is_short_of_slaves_before_the_append() -> None:
    master = Master(policy=ReplicaPolicy(replicas=2, gap_bytes=30, refuses=True))
    assert master.writer.is_short
    master.report(0)
    assert not master.writer.is_short
    master.send("a", "b", "c")  # the slave is too far behind now
    assert master.writer.is_short
    master.report(30)
    assert not master.writer.is_short
    assert master.told() == ["no slave a", "no slave b", "no slave c"]
    master.writer.close()


async def test_the_demand_falls_with_the_replicas_if_it_may() -> None:
    policy = ReplicaPolicy(replicas=2, gap_bytes=1000, refuses=True, adapts=True)
    master = Master(policy=policy)
    master.send("a")
    assert master.told() == ["stored a"], "one replica is enough for now"
    master.report(0)
    master.send("b")
    assert master.told() == []
    master.report()
    assert master.told() == [], "its slave may come back in time"
    master.report(20)
    assert master.told() == ["stored b"]
    master.writer.close()
