"""The beginning of a leader's log, and the logs that must be replaced by it."""

from __future__ import annotations

import pytest

from rocketpost.errors import RemoteProtocolError
from rocketpost.model.members import Configuration, Member
from rocketpost.raft.core import Log
from rocketpost.raft.messages import TermSpan
from rocketpost.server.group.life.beginning import Beginning

BEGINNING = Beginning(800, [(3, 500)], 450, [("n0", "h:1", True)], {"T": {0: 7}})


def log(*, end: int, commit: int, spans: list[tuple[int, int]]) -> Log:
    found = [TermSpan(*span) for span in spans]
    return Log(first=0, end=end, commit=commit, spans=found, members=[])


def test_it_travels_as_text() -> None:
    text = BEGINNING.encode()
    assert Beginning.decode(text) == BEGINNING
    assert BEGINNING.configuration == Configuration(450, (Member("n0", "h:1"),))
    for bad in (text[:-1], text + b"x", b"", b"\0\0\0\0", text[:4] + b"{}"):
        with pytest.raises(RemoteProtocolError):
            Beginning.decode(bad)


@pytest.mark.parametrize(
    ("end", "commit", "spans", "is_needed"),
    [
        (0, 0, [], True),  # an empty disk
        (700, 600, [(1, 0), (3, 500)], True),  # bytes are missing
        (900, 600, [(1, 0), (3, 500)], False),  # the leader can complete it
        (900, 850, [(1, 0), (3, 500)], False),
        (900, 400, [(1, 0), (2, 450)], True),  # an uncommitted end that another leader wrote
    ],
)
def test_a_log_is_replaced_if_it_does_not_agree_there(
    end: int, commit: int, spans: list[tuple[int, int]], is_needed: bool
) -> None:
    assert BEGINNING.is_needed_by(log(end=end, commit=commit, spans=spans)) is is_needed
