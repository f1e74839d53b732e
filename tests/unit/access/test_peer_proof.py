"""Proofs between servers: none can be used twice, elsewhere, or by the other side."""

from __future__ import annotations

import pytest

from rocketpost.access.peer_proof import Meeting, Side

MEETING = Meeting("the log", "servers", b"a" * 32, b"b" * 32, b"channel")
SECRET = b"shared"


def test_each_side_proves_the_secret() -> None:
    for side in Side:
        assert MEETING.is_proof(SECRET, side, MEETING.prove(SECRET, side))
        assert not MEETING.is_proof(b"guessed", side, MEETING.prove(SECRET, side))
        assert not MEETING.is_proof(SECRET, side, b"")


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    assert not MEETING.is_proof(SECRET, Side.CALLED, MEETING.prove(SECRET, Side.CALLER))


@pytest.mark.parametrize(
    "other",
    [
        MEETING._replace(caller_nonce=b"c" * 32),
        MEETING._replace(called_nonce=b"c" * 32),
        MEETING._replace(purpose="the group g"),
        MEETING._replace(user="others"),
        MEETING._replace(binding=b""),
        # Values that are equal when they are joined.
        MEETING._replace(purpose="the lo", user="gservers"),
        MEETING._replace(called_nonce=b"b" * 31, binding=b"bchannel"),
    ],
)
def test_a_proof_of_another_connection_proves_nothing(other: Meeting) -> None:
    assert not MEETING.is_proof(SECRET, Side.CALLER, other.prove(SECRET, Side.CALLER))
