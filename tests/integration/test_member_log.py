"""A member's log over a real store: what is appended, cut, shown and reported, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.model.ids import Position
from rocketpost.server.clock import BrokerClock
from rocketpost.server.group import member_log
from rocketpost.server.group.member_log import MemberLog
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Draft
from rocketpost.store.member.member_store import MemberStore
from rocketpost.testing.waiting import until

HOST = pack_host("10.0.0.1", 10911)
SEGMENT = 64 * 1024


def draft(body: bytes) -> Draft:
    return Draft("T", 0, 0, 0, 0, HOST, HOST, 0, 0, body, b"")


class Member:
    """A log, and what it has told."""

    def __init__(self, root: Path, node: str, flush_mode: FlushMode = FlushMode.SYNC_FLUSH) -> None:
        config = StoreConfig(
            root=str(root / node), segment_bytes=SEGMENT, message_bytes_max=32 * 1024,
            index_slot_count=64, index_entry_count=256,
        )  # fmt: skip
        self.clock = BrokerClock()
        self.member = MemberStore.open_blocking(config, clock=self.clock)
        self.store = self.member.store
        self.safe: list[int] = []
        self.failures: list[str] = []
        self.arrivals: list[Arrival] = []
        self.log = MemberLog(
            self.member,
            node=node,
            host=HOST,
            clock=self.clock,
            flush_mode=flush_mode,
            on_safe=lambda: self.safe.append(self.log.safe_position),
            on_failed=self.failures.append,
        )
        self.log.arrival_listeners = [self.arrivals.extend]
        self.log.begin()

    async def lead(self, term: int) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.log.write_term(
            term, is_leading=lambda _: True, done=done.set_result, refused=done.cancel
        )
        return await done

    def write(self, *bodies: bytes) -> int:
        for body in bodies:
            self.store.append(draft(body))
        return self.store.commit()

    async def copy(self, leader: Member, end: int | None = None) -> None:
        """Append what a leader has."""
        end = leader.log.end if end is None else end
        while self.log.end < end:
            start = self.log.end
            stop = leader.log.batch_end(start, end)
            view = leader.log.view(start, stop)
            assert view is not None
            spans = [span for span in leader.member.spans if start <= span.start < stop]
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.log.append(start, bytes(view), spans, done.set_result)
            assert await done == stop

    async def close(self) -> None:
        await self.log.close()
        self.member.close_blocking()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Member, Member]]:
    leader, follower = Member(tmp_path, "n0"), Member(tmp_path, "n1")
    yield leader, follower
    for member in (leader, follower):
        await member.close()


def bytes_of(member: Member) -> bytes:
    parts = []
    for start in range(0, member.log.end, SEGMENT):
        view = member.log.view(start, min(start + SEGMENT, member.log.end))
        assert view is not None
        parts.append(bytes(view))
    return b"".join(parts)


async def test_a_follower_gets_the_same_bytes_and_shows_what_is_committed(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_log, "BATCH_BYTES_MAX", 10_000)
    leader, follower = pair
    first = await leader.lead(1)
    end = leader.write(*(b"%d" % n * 2000 for n in range(80)))
    assert end > SEGMENT
    await follower.copy(leader)
    assert bytes_of(follower) == bytes_of(leader)
    assert follower.member.spans == leader.member.spans == ((1, 0),)
    await until(lambda: follower.safe and follower.safe[-1] == end)
    assert follower.arrivals == []
    follower.log.commit(first)
    follower.log.show()
    assert (follower.store.confirmed_position, follower.log.committed) == (first, first)
    follower.log.commit(10 * end)  # more than this member has
    follower.log.show()
    assert follower.store.confirmed_position == end
    assert {arrival.topic for arrival in follower.arrivals} == {"rmq_sys_REPLICATED_TABLES", "T"}
    assert follower.failures == []


async def test_a_batch_has_whole_records_of_one_segment(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, _ = pair
    start = await leader.lead(1)
    one = leader.write(b"x" * 3000) - start
    end = leader.write(*[b"x" * 3000] * 40)
    log = leader.log
    assert log.batch_end(start, end) == SEGMENT, "the filler belongs to its segment"
    assert log.batch_end(SEGMENT, end) == end
    assert log.batch_end(start, start + one) == start + one
    monkeypatch.setattr(member_log, "BATCH_BYTES_MAX", 10_000)
    assert log.batch_end(start, end) == start + one * (10_000 // one)
    monkeypatch.setattr(member_log, "BATCH_BYTES_MAX", 100)
    assert log.batch_end(start, end) == start + one, "a large record goes alone"


async def test_a_tail_is_cut_with_its_terms_and_replaced(pair: tuple[Member, Member]) -> None:
    leader, follower = pair
    await leader.lead(1)
    common = leader.write(b"common")
    await follower.copy(leader)
    await follower.lead(2)
    follower.write(b"lost")
    assert [span.term for span in follower.member.spans] == [1, 2]
    await leader.lead(3)
    leader.write(b"kept")
    cut: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    follower.log.cut(common, cut.set_result)
    follower.log.commit(common)
    follower.log.show()
    assert await cut == common
    assert follower.log.end == common
    await until(lambda: follower.store.confirmed_position == common)
    await follower.copy(leader)
    assert bytes_of(follower) == bytes_of(leader)
    assert follower.member.spans == leader.member.spans
    await until(lambda: follower.safe and follower.safe[-1] == leader.log.end)


async def test_changes_wait_while_a_leader_serves_and_keep_their_order(
    pair: tuple[Member, Member],
) -> None:
    leader, follower = pair
    await leader.lead(1)
    common = leader.write(b"a")
    await follower.copy(leader)
    follower.write(b"tail")
    tail = follower.log.end
    end = leader.write(b"b")
    view = leader.log.view(common, end)
    assert view is not None
    told: list[int] = []
    follower.log.allow_changes(False)
    follower.log.cut(common, told.append)
    follower.log.append(common, bytes(view), [], told.append)
    await asyncio.sleep(0)
    assert (told, follower.log.end) == ([], tail)
    follower.log.allow_changes(True)
    await until(lambda: told == [common, end])
    assert bytes_of(follower) == bytes_of(leader)


async def test_a_term_that_ended_before_its_record_leaves_nothing(
    pair: tuple[Member, Member],
) -> None:
    leader, follower = pair
    asked: list[int] = []

    def is_leading(term: int) -> bool:
        asked.append(term)
        return False

    leader.log.write_term(
        1,
        is_leading=is_leading,
        done=lambda end: pytest.fail("it was not written"),
        refused=lambda: pytest.fail("there is room"),
    )
    await until(lambda: asked == [1])
    await follower.lead(2)
    await leader.copy(follower)
    assert leader.member.spans == follower.member.spans == ((2, 0),)


async def test_damaged_bytes_are_refused_and_asked_for_again(pair: tuple[Member, Member]) -> None:
    leader, follower = pair
    await leader.lead(1)
    start = leader.log.end
    await follower.copy(leader)
    end = leader.write(b"body" * 100)
    view = leader.log.view(start, end)
    assert view is not None
    damaged = bytearray(view)
    damaged[-60] ^= 1
    told: list[int] = []
    follower.log.append(start, bytes(damaged), [], told.append)
    assert (told, follower.log.end, follower.failures) == ([], start, [])
    await until(lambda: told)  # after a pause
    assert told == [start]
    await follower.copy(leader)
    assert bytes_of(follower) == bytes_of(leader)


async def test_without_flushes_what_is_written_counts(tmp_path: Path) -> None:
    member = Member(tmp_path, "n0", FlushMode.ASYNC_FLUSH)
    end = await member.lead(1)
    assert member.safe == [end]
    end = member.write(b"a")
    member.log.note_growth()
    assert member.safe[-1] == end
    await member.close()


async def test_a_store_that_fails_is_reported_once_and_closes_quietly(tmp_path: Path) -> None:
    member = Member(tmp_path, "n0")
    await member.lead(1)
    member.store._readiness.break_from_thread("the disk is gone")
    await until(lambda: member.failures)
    assert "the disk is gone" in member.failures[0]
    member.log.append(Position(member.log.end), b"", [], lambda end: None)
    await member.close()


async def test_with_flushes_only_what_is_on_disk_counts(tmp_path: Path) -> None:
    member = Member(tmp_path, "n0")
    await member.lead(1)
    await until(lambda: member.log.safe_position == member.log.end)
    before = member.log.end
    with member.store._flusher.pause():
        end = member.write(b"a")
        member.log.note_growth()
        member.store.request_flush()
        assert member.log.safe_position == before
    await until(lambda: member.safe and member.safe[-1] == end)
    await member.close()
