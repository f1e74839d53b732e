"""The store of a member: what it shows, what it cuts, and when it is suspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.errors import StoreError, StoreLocked
from rocketpost.model.members import Configuration, Member
from rocketpost.store.member.group_records import draft_term
from rocketpost.store.member.hard_state import LOG_UNUSABLE, STATE_LOST
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.member.term_file import encode_terms

from ..conftest import FakeClock, Opener, Roomy, draft

HOST = pack_host("10.0.0.1", 10911)
SEGMENT = 16384


class Members:
    """Opens the store of one member again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self._opener = Opener(self.root)
        self.opened: list[MemberStore] = []

    def __call__(self, **changes: Any) -> MemberStore:
        member = MemberStore.open_blocking(
            self._opener.config(**changes), clock=FakeClock(), files=Roomy()
        )
        self.opened.append(member)
        return member

    def close(self, member: MemberStore) -> None:
        member.close_blocking()
        self.opened.remove(member)

    def crash(self, member: MemberStore) -> None:
        self._opener.stores.append(member.store)
        self._opener.crash(member.store)
        self.opened.remove(member)

    def write(self, name: str, data: bytes) -> None:
        (self.root / name).write_bytes(data)

    def lose(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    members = Members(tmp_path)
    yield members
    for member in members.opened:
        member.close_blocking()


def lead(member: MemberStore, term: int, count: int = 3) -> int:
    """Let a member lead a term, and write some messages; return the start of the term."""
    member.save_vote_blocking(term, "n0")
    start = member.store.end_position
    member.begin_term_blocking(term, "n0", HOST)
    for number in range(count):
        member.store.append(draft(b"%d %d" % (term, number) + bytes(200)))
    member.store.commit()
    member.store.flush_blocking()
    return start


def agree(member: MemberStore) -> None:
    """Let the group commit all that a member has."""
    end = member.store.end_position
    member.store.set_ceiling(end)
    member.store.confirm(end)
    member.save_progress_blocking(end, end)


def test_a_new_member(members: Members) -> None:
    member = members()
    assert member.is_new
    assert not member.suspicions
    assert member.spans == ()
    assert member.knows_terms([(0, 0)])
    assert member.store.confirmed_position == 0
    lead(member, 1)
    members.close(member)
    member = members()
    assert not member.is_new
    assert not member.suspicions
    assert member.spans == ((1, 0),)
    assert (member.state.term, member.state.vote) == (1, "n0")


def test_a_store_of_a_single_broker_is_taken_over_as_it_is(members: Members) -> None:
    store = members._opener()
    for _ in range(5):
        store.append(draft())
    end = store.commit()
    store.close_blocking()
    member = members()
    assert member.is_new
    assert not member.suspicions
    assert member.store.confirmed_position == end
    assert lead(member, 1) == end
    members.close(member)
    assert members().spans == ((1, end),)


@pytest.mark.parametrize("stop", [Members.close, Members.crash])
def test_only_what_is_committed_is_visible(
    members: Members, stop: Callable[[Members, MemberStore], None]
) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    bound = member.store.end_position
    lead(member, 2)
    assert member.store.confirmed_position == bound
    end = member.store.end_position
    stop(members, member)
    member = members()
    assert not member.suspicions
    assert member.store.end_position == end
    assert member.store.confirmed_position == bound
    queue = member.store.queue("TopicA", 0)
    assert queue is not None
    assert queue.end == 3
    assert queue.next_offset == 6
    assert member.spans == ((1, 0), (2, bound))
    agree(member)
    assert queue.end == 6


def test_a_cut_takes_log_terms_watermark_and_members(members: Members) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    bound = member.store.end_position
    lead(member, 2)
    middle = member.store.end_position
    lead(member, 3)
    end = member.store.end_position
    member.save_progress_blocking(bound, end)
    one, two = (Member("n0", "a:1"),), (Member("n0", "a:1"), Member("n1", "a:2"))
    stated = [Configuration(0, one), Configuration(bound, one), Configuration(end, two)]
    member.save_members_blocking(stated)
    assert member.state.watermark == end
    member.cut_blocking(middle)
    assert member.spans == ((1, 0), (2, bound))
    assert member.store.end_position == member.state.watermark == middle
    assert member.state.configurations == (Configuration(bound, one),)
    assert member.state.commit == bound
    with pytest.raises(StoreError, match=f"committed up to {bound}"):
        member.cut_blocking(0)
    members.crash(member)
    member = members()
    assert not member.suspicions
    assert member.spans == ((1, 0), (2, bound))
    member.note_terms_blocking([(2, bound), (4, middle)])
    assert member.spans[-1] == (4, middle)
    with pytest.raises(StoreError):
        member.note_terms_blocking([(5, middle), (6, middle)])


def test_a_term_that_does_not_fit_the_segment_begins_with_its_filler(members: Members) -> None:
    member = members()
    lead(member, 1, 0)
    room = SEGMENT - member.store.end_position - 8
    start = member.store.end_position
    member.store.append(draft(bytes(room - 91 - 6 - 60)))
    member.store.commit()
    start = member.store.end_position
    assert lead(member, 2, 1) == start < SEGMENT < member.store.end_position
    assert member.spans == ((1, 0), (2, start))
    members.close(member)
    assert not members().suspicions
    members.close(members.opened[0])
    members.lose("epochFileCheckpoint", "epochFileCheckpoint.bak")
    member = members()
    assert member.spans == ((1, 0), (2, start))
    assert not member.suspicions
    # A leader elected after the filler alone had arrived begins at the segment.
    member.cut_blocking(SEGMENT)
    lead(member, 3, 1)
    members.close(member)
    member = members()
    assert member.spans == ((1, 0), (2, start), (3, SEGMENT))
    assert not member.suspicions
    members.close(member)
    members.lose("epochFileCheckpoint", "epochFileCheckpoint.bak")
    assert "does not state the term of the filler" in members().suspicions[0]


def test_a_term_whose_first_byte_was_never_written_is_dropped(members: Members) -> None:
    member = members()
    lead(member, 1)
    end = member.store.end_position
    member.save_vote_blocking(5, None)
    member.note_terms_blocking([(5, end)])
    members.crash(member)
    member = members()
    assert list(member.spans) == [(1, 0)]
    assert not member.suspicions
    lead(member, 6)
    assert list(member.spans) == [(1, 0), (6, end)]


def test_a_term_record_that_cannot_be_stored_leaves_no_term(members: Members) -> None:
    member = members()
    lead(member, 1)
    member.store._readiness.break_from_thread("the disk failed")
    with pytest.raises(StoreError, match="the disk failed"):
        member.begin_term_blocking(2, "n0", HOST)
    assert member.spans == ((1, 0),)


def test_a_follower_that_had_no_room_for_a_term_may_lead_the_next(members: Members) -> None:
    member = members()
    lead(member, 1)
    end = member.store.end_position
    member.note_terms_blocking([(2, end)])  # the bytes themselves found no room
    lead(member, 3)
    assert list(member.spans) == [(1, 0), (3, end)]
    with pytest.raises(StoreError, match="cannot follow"):
        member.begin_term_blocking(3, "n0", HOST)


def test_a_term_without_bytes_gives_way_to_another_leaders(members: Members) -> None:
    """The other leader's bytes may even be of an earlier term."""
    member = members()
    lead(member, 3)
    end = member.store.end_position
    for drops in (False, True):
        member.note_terms_blocking([(5, end)])
        assert member.spans[-1] == (5, end)
        assert not member.knows_terms([(4, end)])
        if drops:
            member.drop_empty_term_blocking()
            assert list(member.spans) == [(3, 0)]
        member.note_terms_blocking([(4, end), (7, end + 500)])
        assert list(member.spans) == [(3, 0), (4, end), (7, end + 500)]
        assert not member.knows_terms([(3, end)])
        member.note_terms_blocking([(3, end)])
        assert list(member.spans) == [(3, 0)]
        assert member.knows_terms([(3, end)])
        assert not member.knows_terms([(3, end), (4, end + 500)])


def test_a_term_may_have_more_than_one_record(members: Members) -> None:
    member = members()
    start = lead(member, 1)
    second = lead(member, 2)
    member.store.append(draft_term(2, "n0", start=second, host=HOST, now_ms=1))
    member.store.commit()
    members.close(member)
    member = members()
    assert not member.suspicions
    members.close(member)
    members.lose("epochFileCheckpoint", "epochFileCheckpoint.bak")
    member = members()
    assert member.spans == ((1, start), (2, second))
    assert not member.suspicions


@pytest.mark.parametrize("data", [None, b"damaged"])
def test_a_lost_term_table_is_rebuilt_from_the_log(members: Members, data: bytes | None) -> None:
    member = members()
    starts = [(term, lead(member, term)) for term in (1, 4, 9)]
    members.close(member)
    for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        members.lose(name)
        if data is not None:
            members.write(name, data)
    member = members()
    assert list(member.spans) == starts
    assert not member.suspicions
    assert (members.root / "epochFileCheckpoint").read_bytes() == encode_terms(starts)


def test_a_lost_term_table_of_a_log_that_begins_inside_a_term_is_suspect(members: Members) -> None:
    member = members()
    lead(member, 1, 200)
    agree(member)
    first = member.store.segments.all()[1].start
    members.close(member)
    (members.root / "commitlog" / f"{0:020}").unlink()
    members.lose("epochFileCheckpoint", "epochFileCheckpoint.bak", "extent", "checkpoint")
    member = members()
    assert member.store.first_position == first
    assert any("does not state the term of its first bytes" in each for each in member.suspicions)


def test_an_old_term_table_is_completed_from_the_log(members: Members) -> None:
    member = members()
    first = lead(member, 1)
    old = encode_terms([(1, first)])
    second = lead(member, 2)
    members.close(member)
    for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        members.write(name, old)
    member = members()
    assert member.spans == ((1, first), (2, second))
    assert not member.suspicions


@pytest.mark.parametrize("wrong", [[(1, 0), (2, 100)], [(2, 0)], [(1, 0), (3, 0x100)]])
def test_a_term_table_of_another_log_is_suspect(
    members: Members, wrong: list[tuple[int, int]]
) -> None:
    member = members()
    lead(member, 1)
    member.save_vote_blocking(9, None)
    members.close(member)
    for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        members.write(name, encode_terms(wrong))
    member = members()
    assert "term" in member.suspicions[0]
    assert member.state.suspect
    members.crash(member)
    assert members().state.suspect  # even if the table was repaired


def test_a_lost_hard_state_is_suspect_and_stays_so(members: Members) -> None:
    member = members()
    lead(member, 3)
    agree(member)
    bound = member.store.end_position
    members.close(member)
    members.write("hard-state-0", b"?")
    members.write("hard-state-1", bytes(4096))
    for reason in ("the hard state is lost", "an earlier start found damage"):
        member = members()
        assert reason in member.suspicions[0]
        assert len(member.suspicions) == 1
        assert member.state.suspect == STATE_LOST
        assert (member.state.term, member.state.vote) == (3, None)
        assert member.store.confirmed_position == bound  # by the checkpoint
        members.close(member)
    member = members()
    member.clear_suspicion_blocking()
    members.close(member)
    assert not members().suspicions


def test_a_missing_or_old_hard_state_is_suspect(members: Members) -> None:
    member = members()
    lead(member, 1)
    old = (members.root / "hard-state-0").read_bytes()
    lead(member, 2)
    members.close(member)
    members.lose("hard-state-0", "hard-state-1")
    member = members()
    assert member.suspicions == ("the hard state is missing, but the log has terms",)
    assert not member.is_new
    members.close(member)
    members.write("hard-state-0", old)
    members.write("hard-state-1", old)
    member = members()
    assert member.suspicions == ("the hard state is of term 1, but the log has term 2",)
    assert member.state.term == 2


def test_a_log_that_ends_before_the_watermark_is_suspect(members: Members) -> None:
    member = members()
    lead(member, 1)
    segment = members.root / "commitlog" / f"{0:020}"
    old = segment.read_bytes()
    lead(member, 2)
    end = member.store.end_position
    member.save_progress_blocking(0, end)
    members.crash(member)
    segment.write_bytes(old)
    members.lose("extent")
    member = members()
    assert any(f"but was durable up to {end}" in each for each in member.suspicions)
    assert member.spans == ((1, 0),)
    members.crash(member)
    member = members()
    assert any(f"but was durable up to {end}" in each for each in member.suspicions)


def test_a_tail_that_was_never_promised_is_no_damage(members: Members) -> None:
    member = members()
    lead(member, 1)
    end = member.store.end_position
    member.save_progress_blocking(end, end)
    members.crash(member)
    with (members.root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(end)
        file.write(b"\0\0\1\0half a record")
    member = members()
    assert member.store.end_position == end
    assert not member.suspicions


def test_a_damaged_record_is_suspect(members: Members) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    middle = member.store.end_position
    lead(member, 2)
    members.crash(member)
    with (members.root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(middle - 200)  # in the body of the last record of term 1
        file.write(b"\x55")
    members.lose("checkpoint")
    member = members()
    assert "ranges of the log are damaged" in member.suspicions[0]
    assert member.state.suspect == LOG_UNUSABLE
    assert member.spans == ((1, 0), (2, middle))


def test_missing_segments_are_suspect_but_no_reason_to_stay_away(members: Members) -> None:
    member = members()
    lead(member, 1, 250)
    agree(member)
    members.close(member)
    (members.root / "commitlog" / f"{SEGMENT:020}").unlink()
    member = members()
    assert "damaged" in member.suspicions[0]


def test_progress_is_never_saved_beyond_what_is_durable(members: Members) -> None:
    member = members()
    lead(member, 1)
    durable = member.store.end_position
    member.store.append(draft())
    end = member.store.commit()
    member.save_progress_blocking(end, end)
    assert (member.state.commit, member.state.watermark) == (durable, durable)
    member.save_progress_blocking(0, 0)
    assert (member.state.commit, member.state.watermark) == (durable, durable)


def test_the_progress_of_a_log_that_is_to_be_replaced_is_not_saved(members: Members) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    committed = member.store.end_position
    lead(member, 2, 250)
    members.close(member)
    (members.root / "commitlog" / f"{0:020}").unlink()
    member = members()
    assert member.needs_new_log
    first, end = member.store.first_position, member.store.end_position
    assert committed < first <= end
    member.save_progress_blocking(first, end)
    assert (member.state.commit, member.state.watermark) == (committed, committed)


def test_terms_that_expired_are_forgotten(members: Members) -> None:
    member = members()
    for term in range(1, 20):
        lead(member, term, 20)
    agree(member)
    count = len(member.spans)
    member.store.save_blocking()
    plan = member.store.cleaning.plan_blocking(now_ms=2**62, hour=0, is_requested=True)
    member.store.cleaning.apply(plan)
    while member.store.cleaning.trim_queues():
        pass
    member.store.cleaning.unlink_blocking()
    first = member.store.first_position
    assert first > 0
    member.forget_terms_blocking()
    assert len(member.spans) < count
    assert member.spans[0].start < first
    assert all(span.start >= first for span in member.spans[1:])
    members.close(member)
    member = members()
    assert not member.suspicions
    assert member.spans[0].start < first


def test_a_second_process_changes_nothing(members: Members) -> None:
    member = members()
    lead(member, 1)
    members.write("hard-state-1", b"half a save")
    with pytest.raises(StoreLocked):
        members()
    assert (members.root / "hard-state-1").read_bytes() == b"half a save"
