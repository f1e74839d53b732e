"""Sessions of browsers end by themselves, and their cookies say nothing."""

from __future__ import annotations

from rocketpost.console.access.sessions import (
    AGE_SECONDS_MAX,
    IDLE_SECONDS,
    SESSIONS_MAX,
    Sessions,
    is_csrf_token,
)
from rocketpost.console.access.users import User


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def begin(sessions: Sessions, name: str = "ada") -> str:
    user = User(name=name, role="viewer")
    return sessions.begin(user, address="127.0.0.1", agent="test")


def test_a_session_ends_when_nobody_uses_it() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = begin(sessions)
    clock.now += IDLE_SECONDS - 1
    assert sessions.find(token) is not None
    clock.now += IDLE_SECONDS - 1
    assert sessions.find(token) is not None  # the visit prolonged it
    clock.now += IDLE_SECONDS + 1
    assert sessions.find(token) is None


def test_a_page_that_refreshes_itself_does_not_prolong_a_session() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = begin(sessions)
    clock.now += IDLE_SECONDS - 1
    assert sessions.find(token, is_automatic=True) is not None
    clock.now += 2
    assert sessions.find(token, is_automatic=True) is None


def test_a_session_ends_after_half_a_day() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = begin(sessions)
    while clock.now < 1000 + AGE_SECONDS_MAX:
        assert sessions.find(token) is not None
        clock.now += IDLE_SECONDS / 2
    clock.now += IDLE_SECONDS / 2
    assert sessions.find(token) is None


def test_tokens_differ_and_are_not_kept() -> None:
    sessions = Sessions(Clock())
    one, other = begin(sessions), begin(sessions)
    assert one != other
    assert all(one not in repr(each) for each in sessions.list())
    assert sessions.find(one + "x") is None


def test_sessions_are_ended_by_name_and_by_user() -> None:
    sessions = Sessions(Clock())
    ada, bob = begin(sessions), begin(sessions, "bob")
    found = sessions.find(ada)
    assert found is not None
    assert sessions.end(found.id)
    assert not sessions.end(found.id)
    assert sessions.find(ada) is None
    sessions.end_of_user("bob")
    assert sessions.find(bob) is None


def test_the_number_of_sessions_is_bounded() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first = begin(sessions)
    for _ in range(SESSIONS_MAX):
        clock.now += 0.01
        begin(sessions)
    assert len(sessions.list()) == SESSIONS_MAX
    assert sessions.find(first) is None


def test_a_form_needs_the_token_of_its_session() -> None:
    sessions = Sessions(Clock())
    session = sessions.find(begin(sessions))
    assert session is not None
    assert is_csrf_token(session, session.csrf)
    assert not is_csrf_token(session, "")
    assert not is_csrf_token(session, session.csrf + "é")
