"""Messages wait for the state that they depend on."""

from __future__ import annotations

from random import Random

import pytest

from rocketpost.raft.actions import SaveState, Send
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.core import HELD_MAX, Core, Log
from rocketpost.raft.messages import TermSpan, TimeoutNow


def make_core(term: int = 0, vote: str | None = None, **log: int) -> Core:
    made = Log(first=0, end=log.get("end", 0), commit=log.get("commit", 0), spans=(), members=())
    return Core(node="a", config=RaftConfig(), chance=Random(1), term=term, vote=vote, log=made)


def test_messages_wait_for_the_newest_state() -> None:
    core = make_core()
    core.send("b", TimeoutNow(0))
    core.set_term(1, None)
    core.set_term(1, "b")
    core.send("b", TimeoutNow(1))
    assert core.take_actions() == [SaveState(1, 1, "b"), Send("b", TimeoutNow(0))]
    core.set_term(2, None)
    core.send("b", TimeoutNow(2))
    core.state_saved(1)
    assert core.take_actions() == [SaveState(2, 2, None), Send("b", TimeoutNow(1))]
    core.state_saved(2)
    assert core.take_actions() == [Send("b", TimeoutNow(2))]


def test_a_state_that_is_never_saved_holds_a_bounded_number_of_messages() -> None:
    core = make_core()
    core.set_term(1, None)
    for number in range(HELD_MAX + 10):
        core.send("b", TimeoutNow(number))
    core.take_actions()
    core.state_saved(1)
    released = core.take_actions()
    assert len(released) == HELD_MAX
    assert released[-1] == Send("b", TimeoutNow(HELD_MAX + 9))


def test_a_vote_is_never_changed() -> None:
    core = make_core(term=3, vote="b")
    with pytest.raises(AssertionError, match="never changed"):
        core.set_term(3, "c")
    with pytest.raises(AssertionError):
        core.set_term(2, None)


def test_a_commit_position_is_within_the_log() -> None:
    assert make_core(end=50, commit=80).log.commit == 50
    with pytest.raises(AssertionError):
        make_core(end=50).commit_to(60)


def test_committed_bytes_are_never_cut() -> None:
    log = make_core(end=50, commit=30).log
    with pytest.raises(AssertionError, match="committed 30"):
        log.cut(20)
    log.cut(30)
    assert (log.end, log.persisted) == (30, 30)
    with pytest.raises(AssertionError, match="committed 30"):
        log.trim(40)


def test_a_log_with_a_higher_last_term_is_newer() -> None:
    log = Log(first=0, end=50, commit=0, spans=[TermSpan(2, 0)], members=())
    assert [log.is_behind(*other) for other in [(2, 50), (3, 1), (2, 49), (1, 99)]] == [
        True,
        True,
        False,
        False,
    ]
