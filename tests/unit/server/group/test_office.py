"""The office of a member: it ends at once, and opens and closes in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rocketpost.errors import TermEnded
from rocketpost.server.group.office import Leadership, Office
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.testing.waiting import until

from ..writing import DRAFT, Group, Senders, Store, log_writer


class Broker:
    """Opens terms of office, and may take its time."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.office = Office(
            lead=self.lead,
            follow=self.follow,
            allow_changes=lambda is_allowed: self.told.append(
                "log is free" if is_allowed else "log is held"
            ),
        )

    async def lead(self, leadership: Leadership) -> None:
        self.told.append(f"opens {leadership.term}")
        await self.gate.wait()
        leadership.take(self.writer())
        self.told.append(f"opened {leadership.term}")

    async def follow(self) -> None:
        self.told.append("closes")
        await self.gate.wait()
        self.told.append("closed")

    def writer(self) -> LogWriter:
        self.last_writer = log_writer(Store(), sync=False, group=Group())
        return self.last_writer

    def leadership(self, term: int) -> Leadership:
        return Leadership(
            term,
            committed=lambda: 0,
            note_growth=lambda: None,
            source=None,  # type: ignore[arg-type]
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Office]:
        task = asyncio.create_task(self.office.run())
        try:
            yield self.office
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_a_leadership_opens_and_closes_a_term_of_office() -> None:
    broker = Broker()
    async with broker.running() as office:
        office.lead(broker.leadership(1))
        await until(lambda: office.writer is not None)
        writer = broker.last_writer
        senders = Senders(writer)
        senders.send("a")
        writer.commit()
        office.follow("n1 leads")
        assert "refused a: n1 leads" in senders.told()[0], "in the same call"
        with pytest.raises(TermEnded, match="n1 leads"):
            writer.append(DRAFT)
        assert office.writer is None
        assert broker.told[-1] != "log is free", "the term of office is still open"
        await until(lambda: broker.told[-1] == "log is free")
        assert broker.told == [
            "log is held",
            "opens 1",
            "opened 1",
            "closes",
            "closed",
            "log is free",
        ]


async def test_a_leadership_that_ends_while_it_opens_accepts_nothing() -> None:
    broker = Broker()
    async with broker.running() as office:
        broker.gate.clear()
        office.lead(broker.leadership(1))
        await until(lambda: "opens 1" in broker.told)
        office.follow("n1 leads")
        office.follow("again")
        broker.gate.set()
        await until(lambda: broker.told[-1] == "log is free")
        with pytest.raises(TermEnded, match="n1 leads"):
            broker.last_writer.append(DRAFT)
        assert broker.told[2:] == ["opened 1", "closes", "closed", "log is free"]


async def test_a_leadership_that_ends_before_it_opens_leaves_no_trace() -> None:
    broker = Broker()
    async with broker.running() as office:
        office.lead(broker.leadership(1))
        office.follow("n1 leads")
        await asyncio.sleep(0)
        assert broker.told == ["log is held", "log is free"]


async def test_the_next_leadership_waits_until_the_last_is_closed() -> None:
    broker = Broker()
    async with broker.running() as office:
        office.lead(broker.leadership(1))
        await until(lambda: office.writer is not None)
        broker.gate.clear()
        office.follow("no majority")
        office.lead(broker.leadership(3))
        await until(lambda: broker.told[-1] == "closes")
        broker.gate.set()
        await until(lambda: office.writer is not None)
        assert "log is free" not in broker.told, "nobody else leads in between"
        assert broker.told[-2:] == ["opens 3", "opened 3"]
