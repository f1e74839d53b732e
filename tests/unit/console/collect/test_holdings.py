"""Who held which queue: stints, changes of members, queues that flap, and bounds."""

from __future__ import annotations

from rocketpost.console.collect.holdings import (
    FLAP_CHANGES,
    FLAP_MS,
    QUEUES_MAX,
    STINTS_MAX,
    GroupHoldings,
    Holdings,
    MemberChange,
)


def test_a_stint_lasts_from_its_first_look_to_its_last() -> None:
    holdings = Holdings()
    holdings.note("g", 1000, ["a"], {"q": "a"})
    holdings.note("g", 2000, ["a", "b"], {"q": "a"})
    holdings.note("g", 3000, ["b"], {"q": "b"})
    history = holdings.find("g")
    assert history is not None
    assert [(each.client, each.begin_ms, each.seen_ms) for each in history.queues["q"]] == [
        ("a", 1000, 2000),
        ("b", 3000, 3000),
    ]
    assert list(history.changes) == [
        MemberChange(2000, "joined", "b"),
        MemberChange(3000, "left", "a"),
    ]


def test_a_member_that_came_back_has_two_stints() -> None:
    history = GroupHoldings()
    for at_ms, owners in ((1000, {"q": "a"}), (2000, {}), (3000, {"q": "a"})):
        history.note_owners(at_ms, owners)
        history.note_members(at_ms, ["a"])
    assert [each.begin_ms for each in history.queues["q"]] == [1000, 3000]


def test_unknown_owners_end_no_history() -> None:
    holdings = Holdings()
    holdings.note("g", 1000, ["a"], {"q": "a"})
    holdings.note("g", 2000, ["a"], None)
    history = holdings.find("g")
    assert history is not None
    assert history.queues["q"][0].seen_ms == 1000


def test_a_queue_that_changes_hands_often_flaps_for_ten_minutes() -> None:
    holdings = Holdings()
    for number in range(FLAP_CHANGES + 1):
        holdings.note("g", number * 1000, ["a", "b"], {"q": "ab"[number % 2], "calm": "a"})
    now_ms = FLAP_CHANGES * 1000
    assert holdings.find_flapping(now_ms) == {"g": ["q"]}
    assert holdings.find_flapping(now_ms + FLAP_MS) == {}


def test_memory_is_bounded() -> None:
    holdings = Holdings(groups_max=2)
    for name in ("one", "two", "three"):
        holdings.note(name, 1000, ["a"], None)
    assert holdings.find("one") is None
    holdings.note("nobody", 1000, [], {})
    assert holdings.find("nobody") is None
    for number in range(STINTS_MAX + 5):
        owners = {f"q{each}": f"c{number}" for each in range(QUEUES_MAX + 5)}
        holdings.note("three", 2000 + number, [f"c{number}"], owners)
    history = holdings.find("three")
    assert history is not None
    assert len(history.queues) == QUEUES_MAX
    assert {len(each) for each in history.queues.values()} == {STINTS_MAX}
    holdings.keep(["two"])
    assert holdings.find("three") is None
