"""The log of a member, as its driver uses it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.model.ids import Position
from rocketpost.server.group import member_log
from rocketpost.server.group.member_log import MemberLog
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.files import RealFiles
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.retention import CleanPlan
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.waiting import settle, until

HOST = pack_host("10.0.0.1", 10911)


class FullDisk(RealFiles):
    """Real files on a disk that has no room for new ones while it is full."""

    def __init__(self) -> None:
        self.code = 0

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self._check(create and self.stat(path) is None, path)
        return super().open(path, write=write, create=create)

    def fallocate(self, fd: int, size: int) -> None:
        self._check(True, "")
        super().fallocate(fd, size)

    def _check(self, needs_room: bool, path: str) -> None:
        if needs_room and self.code:
            raise OSError(self.code, os.strerror(self.code), path)


@contextmanager
def member_at(root: Path, files: RealFiles | None = None) -> Iterator[MemberStore]:
    config = StoreConfig(
        root=str(root),
        segment_bytes=16384,
        queue_file_bytes=2000,
        message_bytes_max=8192,
        index_slot_count=64,
        index_entry_count=256,
    )
    member = MemberStore.open_blocking(config, clock=FakeClock(), files=files)
    try:
        yield member
    finally:
        member.close_blocking()


def log_of(
    member: MemberStore,
    flush_mode: FlushMode = FlushMode.ASYNC_FLUSH,
    on_safe: Callable[[], None] = lambda: None,
    on_failed: Callable[[str], None] = lambda reason: None,
) -> MemberLog:
    log = MemberLog(
        member,
        node="n0",
        host=HOST,
        clock=FakeClock(),
        flush_mode=flush_mode,
        on_safe=on_safe,
        on_failed=on_failed,
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
        log.write_term(
            5, is_leading=lambda term: False, done=lambda position: None, refused=lambda: None
        )
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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
async def test_a_full_disk_keeps_out_a_new_term_until_there_is_room(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_log, "_RETRY_SECONDS", 0.01)
    files, failures = FullDisk(), list[str]()
    with member_at(tmp_path / "a", files) as member, member_at(tmp_path / "b") as leader:
        start = begin(leader, 3)
        view = leader.store.view(start, leader.store.end_position - start)
        assert view is not None
        log = log_of(member, on_failed=failures.append)
        ends: list[int] = []
        files.code = code
        log.append(start, bytes(view), [(3, start)], ends.append)
        await until(lambda: bool(ends))
        assert ends == [start], "the leader sends it again"
        files.code = 0
        log.append(start, bytes(view), [(3, start)], ends.append)
        await until(lambda: len(ends) == 2)
        assert ends[1] == leader.store.end_position
        assert list(member.spans) == [(3, start)]
        assert not failures
        await log.close()


@pytest.mark.parametrize("is_table_full", [True, False])
async def test_a_leader_without_room_for_its_term_steps_down(
    tmp_path: Path, is_table_full: bool
) -> None:
    files, failures = FullDisk(), list[str]()
    with member_at(tmp_path, files) as member:
        log = log_of(member, on_failed=failures.append)
        told: list[object] = []

        def lead(term: int) -> None:
            log.write_term(
                term,
                is_leading=lambda term: True,
                done=told.append,
                refused=lambda: told.append("refused"),
            )

        if is_table_full:
            files.code = errno.ENOSPC
        else:
            member.store._readiness.set_trouble("queues or index could not be saved: no room")
        lead(3)
        await until(lambda: told == ["refused"])
        assert member.store.end_position == 0
        files.code = 0
        member.store._readiness.set_trouble(None)
        lead(4)
        await until(lambda: len(told) == 2)
        assert told[1] == member.store.end_position > 0
        assert list(member.spans) == [(4, 0)]
        assert not failures
        await log.close()


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("is_queue_full", [True, False])
async def test_a_cut_without_room_is_made_when_there_is_room(
    tmp_path: Path, is_queue_full: bool, is_closed: bool
) -> None:
    files, failures = FullDisk(), list[str]()
    with (
        member_at(tmp_path, files) as member,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(member_log, "_RETRY_SECONDS", 0.01)
        begin(member, 1)
        end = begin(member, 2)
        log = log_of(member, on_failed=failures.append)
        if is_queue_full:
            member.store._readiness.set_trouble("queues or index could not be saved: no room")
        else:
            files.code = errno.ENOSPC
        done: list[int] = []
        log.cut(end, done.append)
        await until(lambda: bool(log._problem or failures))
        assert not done
        assert member.store.end_position > end
        if not is_closed:
            files.code = 0
            member.store._readiness.set_trouble(None)
            await until(lambda: bool(done))
            assert member.store.end_position == end
        assert not failures
        await log.close()
        assert done == ([] if is_closed else [end])
        files.code = 0


async def test_terms_are_forgotten_later_if_the_disk_is_full(tmp_path: Path) -> None:
    files, failures = FullDisk(), list[str]()
    with member_at(tmp_path, files) as member:
        store = member.store
        for term in (1, 2, 3):
            begin(member, term)
            store.append(Draft("T", 0, 0, 0, 0, HOST, HOST, 0, 0, bytes(8000), b""))
            store.append(Draft("T", 0, 0, 0, 0, HOST, HOST, 0, 0, bytes(8000), b""))
            end = store.commit()
        store.set_ceiling(end)
        store.confirm(end)
        store.save_blocking()
        store.cleaning.apply(CleanPlan((Position(0), Position(16384)), "a test", None))
        log = log_of(member, on_failed=failures.append)
        files.code = errno.ENOSPC
        for spans in (3, 1):
            log.forget_terms()
            done: list[int] = []
            log.cut(log.end, done.append)
            await until(lambda done=done: bool(done))
            assert len(member.spans) == spans
            files.code = 0
        assert not failures
        await log.close()


async def test_a_failed_write_of_the_terms_ends_the_part_of_a_member(tmp_path: Path) -> None:
    files, failures = FullDisk(), list[str]()
    with member_at(tmp_path, files) as member:
        log = log_of(member, on_failed=failures.append)
        files.code = errno.EIO
        log.write_term(
            3,
            is_leading=lambda term: True,
            done=lambda end: pytest.fail("it was not written"),
            refused=lambda: pytest.fail("this is no full disk"),
        )
        await until(lambda: bool(failures))
        files.code = 0
        await log.close()


@pytest.mark.parametrize("is_new_term", [True, False])
async def test_a_follower_without_room_has_the_bytes_sent_again_after_a_pause(
    tmp_path: Path, is_new_term: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its leader would do nothing else: it sends them again as fast as it can."""
    monkeypatch.setattr(member_log, "_RETRY_SECONDS", 0.05)
    loop, files = asyncio.get_running_loop(), FullDisk()
    with member_at(tmp_path / "a", files) as member, member_at(tmp_path / "b") as leader:
        start = begin(leader, 3)
        view = leader.store.view(start, leader.store.end_position - start)
        assert view is not None
        log, ends = log_of(member), list[int]()
        if is_new_term:
            files.code = errno.ENOSPC
        else:
            member.note_terms_blocking([(3, start)])
            member.store._readiness.set_trouble("queues or index could not be saved: no room")
        begun_at = loop.time()
        log.append(start, bytes(view), [(3, start)], ends.append)
        await until(lambda: bool(ends))
        assert ends == [start]
        assert loop.time() - begun_at >= 0.05
        monkeypatch.setattr(member_log, "_RETRY_SECONDS", 3600.0)
        log.append(start, bytes(view), [(3, start)], ends.append)
        await log.close()
        assert ends == [start], "the node is told nothing of a log that is closed"
        files.code = 0
