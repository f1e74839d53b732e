"""A member's log replaced by an empty one that begins where the leader's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError, StoreLocked
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration, Member
from rocketpost.store.member.hard_state import STATE_LOST
from rocketpost.store.member.reset import reset_log_blocking

from ..conftest import Roomy, draft
from .test_member_store import SEGMENT, Members, agree, lead, members

__all__ = ["members"]

GROUP = Configuration(700, (Member("n0", "a:1"), Member("n1", "a:2", is_voter=False)))
FIRST = 3 * SEGMENT
SPANS = ((1, 0), (4, 900))


def reset(
    members: Members, first: int = FIRST, spans: tuple[tuple[int, int], ...] = SPANS
) -> list[int]:
    told: list[int] = []
    reset_log_blocking(
        members._opener.config(),
        Roomy(),
        first=first,
        spans=spans,
        members=GROUP,
        on_reset=told.append,
    )
    return told


def test_the_new_log_takes_the_leaders_bytes(members: Members, tmp_path: Path) -> None:
    leader = Members(tmp_path / "leader")
    source = leader()
    lead(source, 1, 600)
    agree(source)
    segment = source.store.segments.all()[3]
    assert segment.start == FIRST
    member = members()
    lead(member, 3, 100)
    agree(member)
    member.save_vote_blocking(5, "n1")
    members.close(member)
    assert reset(members, spans=((1, 0),)) == [FIRST]
    member = members()
    assert not member.suspicions
    assert not member.is_new
    assert member.spans == ((1, 0),)
    store = member.store
    assert store.first_position == store.end_position == store.confirmed_position == FIRST
    assert (member.state.term, member.state.vote) == (5, "n1")
    assert (member.state.commit, member.state.watermark) == (FIRST, 0)
    assert member.state.configurations == (GROUP,)
    assert not list(store.queues)
    data = bytes(segment.view())
    assert member.knows_terms([(1, FIRST)])
    end = store.append_raw(Position(FIRST), data)
    agree(member)
    queue, original = store.queue("TopicA", 0), source.store.queue("TopicA", 0)
    assert queue is not None
    assert original is not None
    assert queue.first == original.first_at(FIRST) > 0
    members.close(member)
    member = members()
    assert not member.suspicions
    assert member.store.end_position == end
    leader.close(source)


def test_a_damaged_member_stays_suspect_until_it_is_cleared(members: Members) -> None:
    member = members()
    lead(member, 1, 250)
    agree(member)
    members.close(member)
    (members.root / "commitlog" / f"{SEGMENT:020}").unlink()
    member = members()
    assert member.suspicions
    members.close(member)
    reset(members, first=6 * SEGMENT)
    member = members()
    assert member.state.suspect == STATE_LOST
    assert member.suspicions == ("an earlier start found damage, and its repair is not finished",)
    assert not member.store.damage.all()
    member.clear_suspicion_blocking()
    members.close(member)
    assert not members().suspicions


def test_a_lost_hard_state_is_remembered(members: Members) -> None:
    member = members()
    lead(member, 3)
    members.close(member)
    members.write("hard-state-0", b"?")
    members.lose("hard-state-1")
    reset(members)
    assert members().state.suspect == STATE_LOST


def test_an_empty_member_begins_where_the_leader_does(members: Members) -> None:
    reset(members)
    member = members()
    assert not member.suspicions
    assert member.store.end_position == FIRST
    assert member.spans == SPANS
    start = lead(member, 5)
    assert start == FIRST
    member.store.append(draft())
    members.close(member)
    assert members().spans == (*SPANS, (5, FIRST))


@pytest.mark.parametrize(
    ("first", "spans"), [(100, ()), (SEGMENT, ((1, SEGMENT),)), (SEGMENT, ((2, 0), (1, 5)))]
)
def test_an_impossible_beginning_changes_nothing(
    members: Members, first: int, spans: tuple[tuple[int, int], ...]
) -> None:
    member = members()
    lead(member, 1)
    members.close(member)
    with pytest.raises(StoreError, match=f"cannot begin at {first}"):
        reset(members, first, spans)
    assert members().spans == ((1, 0),)


def test_an_open_store_is_not_replaced(members: Members) -> None:
    member = members()
    lead(member, 1)
    with pytest.raises(StoreLocked):
        reset(members)
    assert not (members.root / "resetting").exists()


def test_a_damaged_decision_is_suspect(members: Members) -> None:
    member = members()
    lead(member, 1)
    members.close(member)
    members.write("resetting", b"RPRESET1 something else")
    member = members()
    assert "the log was being replaced" in member.suspicions[0]
    assert member.state.suspect


def test_queues_without_messages_since_continue_where_the_leaders_do(members: Members) -> None:
    members.close(members())
    reset_log_blocking(
        members._opener.config(),
        Roomy(),
        first=FIRST,
        spans=SPANS,
        members=GROUP,
        starts={"TopicA": {0: 77}, "TopicB": {0: 5}},
        on_reset=lambda _: None,
    )
    member = members()
    assert member.store.append(draft(b"x", topic="TopicA")).queue_offset == 77
    member.store.commit()
    agree(member)
    members.crash(member)
    member = members()
    store = member.store
    assert store.append(draft(b"x", topic="TopicA")).queue_offset == 78
    assert store.append(draft(b"x", topic="TopicB")).queue_offset == 5
    assert store.append(draft(b"x", topic="TopicC")).queue_offset == 0
    assert store.deletions.snapshot() == {}, "no other member deletes anything"
    store.commit()
    agree(member)
    store.delete_queues("TopicB").finish_blocking()
    assert store.append(draft(b"x", topic="TopicB")).queue_offset == 6
    store.commit()
