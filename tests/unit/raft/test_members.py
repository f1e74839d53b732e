from __future__ import annotations

import itertools

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.members import NOBODY, ChangeKind, MemberChange, MemberTable
from rocketpost.raft.messages import MemberRecord, Members
from rocketpost.raft.quorum import majority

ABC = Members(frozenset("abc"))
ABC_D = Members(frozenset("abc"), frozenset("d"))
ABCD = Members(frozenset("abcd"))


def test_the_newest_record_is_valid_until_it_is_cut() -> None:
    table = MemberTable([MemberRecord(0, ABC), MemberRecord(50, ABC_D)])
    assert (table.latest, table.latest_position) == (ABC_D, 50)
    assert table.at(49).members == ABC
    assert table.between(0, 50) == (MemberRecord(50, ABC_D),)
    table.cut(49)
    assert (table.latest, table.latest_position) == (ABC, 0)
    table.cut(-1)
    assert (table.latest, table.latest_position) == (NOBODY, 0)


def test_a_record_is_kept_as_long_as_it_is_valid_in_the_log() -> None:
    table = MemberTable([MemberRecord(0, ABC), MemberRecord(50, ABC_D), MemberRecord(90, ABCD)])
    table.trim(49)
    assert len(table.records) == 3
    table.trim(70)
    assert table.records == (MemberRecord(50, ABC_D), MemberRecord(90, ABCD))
    with pytest.raises(AssertionError):
        table.add(MemberRecord(90, ABC))


def test_without_records_there_is_nobody() -> None:
    assert (MemberTable().latest, MemberTable().latest_position) == (NOBODY, 0)
    assert MemberTable().at(7) == MemberRecord(0, NOBODY)


def test_a_change_of_one_voter_keeps_majorities_in_touch() -> None:
    before = ABC_D
    for change in (
        MemberChange(ChangeKind.PROMOTE, "d"),
        MemberChange(ChangeKind.REMOVE, "a"),
        MemberChange(ChangeKind.REMOVE, "d"),
        MemberChange(ChangeKind.ADD_LEARNER, "e"),
    ):
        after = change.apply(before)
        old = itertools.combinations(sorted(before.voters), majority(before.voters))
        new = list(itertools.combinations(sorted(after.voters), majority(after.voters)))
        assert all(set(one) & set(two) for one in old for two in new)


@pytest.mark.parametrize(
    ("kind", "node", "reason"),
    [
        (ChangeKind.ADD_LEARNER, "a", "a is a member already"),
        (ChangeKind.ADD_LEARNER, "d", "d is a member already"),
        (ChangeKind.PROMOTE, "a", "a is no learner"),
        (ChangeKind.REMOVE, "x", "x is no member"),
    ],
)
def test_changes_that_make_no_sense(kind: ChangeKind, node: str, reason: str) -> None:
    with pytest.raises(ReplicationError, match=reason):
        MemberChange(kind, node).apply(ABC_D)


def test_the_only_voter_stays() -> None:
    with pytest.raises(ReplicationError, match="only voter"):
        MemberChange(ChangeKind.REMOVE, "a").apply(Members(frozenset("a"), frozenset("b")))
