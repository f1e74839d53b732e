"""Changes of the smallest id in a broker group."""

from __future__ import annotations

from rocketpost.namesrv.min_broker import after_joining, after_leaving


def test_the_first_member_changes_nothing() -> None:
    assert after_joining("b", {}, {1: "h:1"}, ha_address="h:2") is None


def test_a_larger_id_changes_nothing() -> None:
    assert after_joining("b", {0: "h:1"}, {0: "h:1", 1: "h:2"}, ha_address="") is None
    assert after_leaving("b", {0: "h:1", 1: "h:2"}, {0: "h:1"}) is None


def test_the_others_are_told_of_a_smaller_id() -> None:
    change = after_joining("b", {2: "h:2", 1: "h:1"}, {2: "h:2", 1: "h:1", 0: "h:0"}, ha_address="")
    assert change == ("b", ("h:1", "h:2"), 0, "h:0", None, None)


def test_a_lone_member_that_takes_a_smaller_id_is_told_itself() -> None:
    change = after_joining("b", {1: "h:1"}, {0: "h:1"}, ha_address="h:9")
    assert change == ("b", ("h:1",), 0, "h:1", None, "h:9")


def test_all_that_are_left_are_told_of_a_loss() -> None:
    change = after_leaving("b", {0: "h:0", 1: "h:1", 2: "h:2"}, {1: "h:1", 2: "h:2"})
    assert change == ("b", ("h:1", "h:2"), 1, "h:1", "h:0", None)
    assert after_leaving("b", {1: "h:1"}, {}) is None
