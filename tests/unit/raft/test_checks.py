"""Messages that no correct member sends are refused, and change nothing."""

from __future__ import annotations

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.checks import check_message
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    MemberRecord,
    Members,
    Message,
    SnapshotOffer,
    TermSpan,
)

from .group import Group

ABC = Members(frozenset("abc"))
SPANS = (TermSpan(2, 10), TermSpan(3, 20))


@pytest.mark.parametrize(
    "message",
    [
        Append(3, 10, 2, 5),
        Append(3, -1, 0, -1),
        Append(3, 10, 2, 10, spans=SPANS),
        Append(3, 10, 2, 30),
        Append(3, 0, 0, 30, spans=SPANS),
        Append(3, 10, 3, 30, spans=SPANS),
        Append(3, 10, 2, 20, spans=SPANS),
        Append(2, 10, 2, 30, spans=SPANS),
        Append(3, 10, 2, 30, spans=(TermSpan(2, 10), TermSpan(2, 20))),
        Append(3, 10, 2, 30, spans=SPANS, members=(MemberRecord(10, ABC),)),
        Append(3, 10, 2, 30, spans=SPANS, members=(MemberRecord(31, ABC),)),
        SnapshotOffer(3, 30, SPANS, MemberRecord(0, ABC), commit=20),
        SnapshotOffer(3, 20, SPANS, MemberRecord(0, ABC), commit=20),
        SnapshotOffer(3, 30, SPANS, MemberRecord(40, ABC), commit=50),
    ],
)
def test_a_message_that_contradicts_itself(message: Message) -> None:
    with pytest.raises(ReplicationError, match="cannot be right"):
        check_message(message)
    group = Group()
    with pytest.raises(ReplicationError):
        group["a"].step("b", message)
    assert group["a"].term == 0


def test_messages_that_can_be_right() -> None:
    check_message(Append(3, 10, 2, 30, SPANS, (MemberRecord(30, ABC),), 99))
    check_message(SnapshotOffer(3, 30, SPANS, MemberRecord(0, ABC), commit=30))
    check_message(SnapshotOffer(3, 0, (), MemberRecord(0, ABC), commit=30))


def test_a_follower_cannot_have_more_than_the_leader() -> None:
    group = Group()
    group.elect("a")
    with pytest.raises(ReplicationError, match="acknowledges the position 500"):
        group["a"].step("b", AppendReply(1, 500))


def test_a_leader_that_contradicts_what_is_committed() -> None:
    """One of the two disks is damaged; nothing is cut, and the link is closed."""
    group = Group()
    group.elect("a")
    group.send("a")
    group.settle()
    group.run(1)
    with pytest.raises(ReplicationError, match="one of the two logs is damaged"):
        group["b"].step("c", Append(5, 20, 4, 20))
    assert group["b"].log.end == 20
