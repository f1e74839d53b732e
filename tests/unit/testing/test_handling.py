from __future__ import annotations

from rocketpost.testing.handling import HandlingCheck
from rocketpost.testing.journal import Entry

WINDOW = 3


def follow(text: str, *, orderly: bool = False) -> HandlingCheck:
    """Follow a journal; of handled messages only member and offset are given."""
    handling = HandlingCheck(orderly=orderly, window=WINDOW)
    take(handling, text)
    return handling


def take(handling: HandlingCheck, text: str) -> None:
    for line in text.strip().splitlines():
        what, who, *rest = line.split()
        if what == "share":
            queues, members = rest
            rest = ["t", queues.replace("q", "t/b/"), members]
        elif rest and what != "joined":
            offset = rest[0]
            rest = ["t/b/0", offset, rest[1] if len(rest) > 1 else str(100 + int(offset)), "k"]
        handling.take([Entry(what, who, tuple(rest))])


def handled(who: str, *offsets: int) -> str:
    return "\n".join(f"begin {who} {n}\ndone {who} {n}" for n in offsets)


def test_acknowledged_messages_that_were_not_handled_are_missing() -> None:
    handling = follow("share a q0 a\nbegin a 0\ndone a 0\nbegin a 1")
    handling.check([100])
    assert handling.violations == []
    handling.check([100, 101])
    assert handling.violations == ["1 acknowledged messages were not handled: [101]"]


def test_a_member_may_repeat_a_window_when_it_gets_a_queue() -> None:
    start = f"share a q0 a\n{handled('a', *range(6))}\nkilled a\nshare b q0 b\n"
    handling = follow(start + handled("b", 3, 4, 5, 6))
    handling.check([])
    assert (handling.violations, handling.repeats, handling.changes) == ([], 3, 1)
    handling = follow(start + handled("b", 2, 3, 4, 5, 6))
    handling.check([])
    assert handling.violations == [
        "t/b/0: b repeated 4 messages since it got the queue, but only 3 were in flight"
    ]
    assert handling.most_repeated == 4


def test_members_that_share_a_queue_for_a_while_may_repeat_each_other() -> None:
    handling = follow(
        f"share a q0 a\n{handled('a', 0, 1)}\nshare b q0 a,b\n{handled('a', 2, 3, 4, 5)}\n"
        f"{handled('b', 0, 1, 2, 3, 4, 5, 6)}\nshare a - a,b"
    )
    handling.check([])
    assert handling.violations == []


def test_a_member_that_was_frozen_may_not_do_all_again_that_others_did() -> None:
    frozen = (
        f"share a q0 a,b\n{handled('a', 0)}\nfrozen a\nshare b q0 b\n{handled('b', *range(1, 9))}\n"
        "thawed a\n"
    )
    fine = follow(frozen + handled("a", 1, 2, 3, 9))
    fine.check([])
    assert fine.violations == []
    wrong = follow(frozen + handled("a", 1, 2, 3, 4))
    wrong.check([])
    assert len(wrong.violations) == 1


def test_a_dead_broker_forgets_what_it_had_not_saved() -> None:
    start = f"share a q0 a\n{handled('a', *range(9))}"
    for saved, wrong in (({"t/b/0": 5}, 0), ({"t/b/0": 9}, 1), ({}, 0)):
        handling = follow(start)
        handling.note_broker_death(saved)
        take(handling, f"killed a\nshare b q0 b\n{handled('b', *range(4, 10))}")
        handling.check([])
        assert len(handling.violations) == wrong


def test_in_order_nothing_may_be_passed_over() -> None:
    assert not follow(f"share a q0 a\n{handled('a', 0, 1, 2)}", orderly=True).violations
    handling = follow(f"share a q0 a\n{handled('a', 0, 2)}", orderly=True)
    assert handling.violations == ["t/b/0: a began 2 when 0 was the last"]


def test_in_order_a_failed_message_may_be_handled_again() -> None:
    handling = follow("share a q0 a\nbegin a 0\nfail a 0\nbegin a 0\ndone a 0", orderly=True)
    assert (handling.repeats, handling.failures, handling.done) == (0, 1, {100: 1})


def test_in_order_nobody_begins_while_another_is_at_work() -> None:
    start = "share a q0 a\nbegin a 0\n"
    handling = follow(start + "begin b 0", orderly=True)
    assert handling.violations == ["t/b/0: b began 0 while a was at 0"]
    for excuse in ("done a 0\n", "frozen a\n", "killed a\n", "left a\n"):
        assert not follow(start + excuse + "begin b 0", orderly=True).violations


def test_in_order_a_key_is_handled_from_old_to_new() -> None:
    handling = follow("share a q0 a\nbegin a 0 7\ndone a 0 7\nbegin a 1 6", orderly=True)
    assert handling.violations == ["k: message 6 was begun after 7"]


def test_shares_of_those_that_are_there() -> None:
    handling = follow("share a q0 a,b\nshare b q1 a,b\nbegin b 0\nfrozen b")
    assert handling.current_shares("t") == {"a": frozenset({"t/b/0"})}
    share = handling.last_share("b", "t")
    assert share is not None
    assert share.queues == {"t/b/1"}
    assert handling.find_begun(0) == {"t/b/0"}
    assert handling.find_begun(0, but="b") == set()
    take(handling, "thawed b")
    assert handling.current_shares("t").keys() == {"a", "b"}


def frozen_before_its_first_line(*, threads: bool = False) -> str:
    """Return a journal in which a is frozen while no handler of it is at work, and b goes on."""
    return f"""
        joined a {"threads" if threads else ""}
        share a q0,q1 a
        {handled("a", 0)}
        frozen a
        share b q0,q1 b
        {handled("b", 1)}
        begin b 2
        thawed a
    """


def test_who_was_frozen_on_the_way_to_its_handler_may_begin_that_message_late() -> None:
    for threads in (False, True):
        handling = follow(frozen_before_its_first_line(threads=threads), orderly=True)
        take(handling, "begin a 1\ndone b 2\nbegin b 3\ndone a 1")
        assert handling.violations == []
        take(handling, "begin a 2")
        assert handling.violations == ["t/b/0: a began 2 while b was at 3"]


def test_a_late_begin_is_the_first_line_of_who_was_frozen() -> None:
    violation = ["t/b/0: a began 1 while b was at 2"]
    handling = follow(frozen_before_its_first_line() + "share a q0 a,b\nbegin a 1", orderly=True)
    assert handling.violations == violation
    threads = frozen_before_its_first_line(threads=True)
    handling = follow(threads + "share a q0 a,b\nbegin a 1", orderly=True)
    assert handling.violations == []  # another thread of it wrote the share


def test_who_was_at_work_when_it_was_frozen_began_nothing_else_there() -> None:
    handling = follow(
        f"share a q0 a\n{handled('a', 0)}\nbegin a 1\nfrozen a\nshare b q0 b\n"
        f"{handled('b', 1)}\nbegin b 2\nthawed a\nbegin a 2",
        orderly=True,
    )
    assert handling.violations == ["t/b/0: a began 2 while b was at 2"]
