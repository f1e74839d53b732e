"""The log of a member, as its driver uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketpost.codec.record import pack_host
from rocketpost.server.group.member_log import MemberLog
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.member.member_store import MemberStore
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.waiting import settle, until

HOST = pack_host("10.0.0.1", 10911)


@contextmanager
def member_at(root: Path) -> Iterator[MemberStore]:
    config = StoreConfig(
        root=str(root),
        segment_bytes=16384,
        queue_file_bytes=2000,
        message_bytes_max=8192,
        index_slot_count=64,
        index_entry_count=256,
    )
    member = MemberStore.open_blocking(config, clock=FakeClock())
    try:
        yield member
    finally:
        member.close_blocking()


def log_of(
    member: MemberStore,
    flush_mode: FlushMode = FlushMode.ASYNC_FLUSH,
    on_safe: Callable[[], None] = lambda: None,
) -> MemberLog:
    log = MemberLog(
        member,
        node="n0",
        host=HOST,
        clock=FakeClock(),
        flush_mode=flush_mode,
        on_safe=on_safe,
        on_failed=lambda reason: None,
    )
    log.begin()
    return log


def begin(member: MemberStore, term: int) -> int:
    start = member.store.end_position
    member.begin_term_blocking(term, "n1", HOST)
    member.store.commit()
    return start


async def test_a_term_that_was_given_up_does_not_name_another_leaders_bytes(tmp_path: Path) -> None:
    """This member was elected in term 5, but a leader of term 7 has bytes of term 4."""
    with member_at(tmp_path / "a") as member, member_at(tmp_path / "b") as leader:
        for each in (member, leader):
            begin(each, 3)
        end = member.store.end_position
        fourth, seventh = begin(leader, 4), begin(leader, 7)
        assert fourth == end
        log = log_of(member)
        log.write_term(5, lambda term: False, lambda position: None)
        await until(lambda: log.last_term == 5)
        for start, stop, spans in (
            (fourth, seventh, [(4, fourth)]),
            (seventh, leader.store.end_position, [(7, seventh)]),
        ):
            view = leader.store.view(start, stop - start)
            assert view is not None
            done: list[int] = []
            log.append(start, bytes(view), spans, done.append)
            await until(lambda done=done: bool(done))
            assert done == [stop]
        assert list(member.spans) == [(3, 0), (4, fourth), (7, seventh)]
        await log.close()


async def test_a_flush_is_reported_only_while_it_is_awaited(tmp_path: Path) -> None:
    with member_at(tmp_path) as member:
        safe: list[int] = []
        log = log_of(member, FlushMode.SYNC_FLUSH, lambda: safe.append(log.safe_position))
        store = member.store
        first = begin(member, 1)
        store.request_flush()
        await until(lambda: safe == [store.end_position])
        log.await_flush(False)
        begin(member, 2)
        store.request_flush()
        await until(lambda: store.durable_position == store.end_position)
        await settle()
        assert len(safe) == 1
        assert log.safe_position == store.end_position > first, "it can be asked for"
        log.await_flush(True)
        assert safe[1:] == [store.end_position], "what was not reported is reported now"
        log.await_flush(True)
        assert len(safe) == 2
        await log.close()
