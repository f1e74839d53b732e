"""Timed messages: which are taken, and what is stored of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.timer.admission import TimedMessages, TimerRules, recall_handle, waiting_of
from rocketpost.codec.faults import MessageIllegal, ServerError
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.recall_handle import RecallHandle, decode_recall_handle
from rocketpost.codec.record import pack_host
from rocketpost.store.draft import Draft
from rocketpost.testing.clock import FakeClock

NOW = 1_700_000_000_250
HOST = pack_host("127.0.0.1", 10911)


def timers(count: int = 0, chance: int = 0, **rules: Any) -> TimedMessages:
    clock = FakeClock(NOW)
    kind = TimedMessages(
        clock=clock,
        precision_ms=1000,
        rules=lambda: TimerRules(**rules),
        random_below=lambda most: chance,
    )
    kind.count_in = lambda slot_ms: count
    return kind


def claim(kind: TimedMessages, **properties: str) -> Draft | None:
    given = {"UNIQ_KEY": "U", **properties}
    draft = Draft("T", 3, 0, 0, 0, HOST, HOST, 0, 0, b"b", encode_properties(given), 0, ("U",))
    return kind.prepare(draft, given)


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, NOW + 5000),
        ({"TIMER_DELAY_MS": "5"}, NOW + 5),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "7", "TIMER_DELIVER_MS": "1"}, NOW + 5000),
    ],
)
def test_a_message_waits_in_its_slot(properties: dict[str, str], due_ms: int) -> None:
    stored = claim(timers(), **properties)
    assert stored is not None
    assert (stored.topic, stored.queue_id) == ("rmq_sys_wheel_timer", 0)
    kept = decode_properties(stored.properties)
    assert kept["TIMER_DELIVER_MS"] == str(due_ms)
    assert kept["TIMER_OUT_MS"] == str((due_ms - 1) // 1000 * 1000)
    assert (kept["REAL_TOPIC"], kept["REAL_QID"]) == ("T", "3")
    handle = recall_handle(decode_properties(stored.properties), "b")
    assert handle is not None
    assert decode_recall_handle(handle) == RecallHandle("T", "b", due_ms, "U")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "0"},
        {"TIMER_DELAY_SEC": "-3"},
        {"TIMER_DELIVER_MS": str(NOW + 9), "TIMER_OUT_MS": "1"},
    ],
)
def test_a_message_that_is_due_or_was_timed_before_is_plain(properties: dict[str, str]) -> None:
    assert claim(timers(), **properties) is None


@pytest.mark.parametrize("text", ["x", "1.5", "", " 1", "9" * 19, "٣", "--1"])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_an_invalid_time_is_refused(name: str, text: str) -> None:
    with pytest.raises(MessageIllegal, match=name):
        claim(timers(), **{name: text})


def test_a_time_too_far_ahead_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="timerMaxDelaySec"):
        claim(timers(delay_ms_max=5000), TIMER_DELAY_MS="5001")
    assert claim(timers(delay_ms_max=5000), TIMER_DELAY_MS="5000") is not None
    assert claim(timers(), TIMER_DELAY_SEC=str(365 * 86_400)) is not None


def test_without_a_wheel_timed_messages_are_refused() -> None:
    with pytest.raises(ServerError, match="timerWheelEnable"):
        claim(timers(enabled=False), TIMER_DELAY_SEC="1")


def test_a_recall_of_a_due_message_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="recalled"):
        claim(timers(), TIMER_DELIVER_MS="1", TIMER_DEL_UNIQKEY="T+U")


def test_a_crowded_slot_refuses_a_growing_share() -> None:
    def is_taken(count: int, chance: int) -> bool:
        try:
            claim(timers(count, chance, slot_count_max=100), TIMER_DELAY_SEC="1")
        except ServerError:
            return False
        return True

    assert is_taken(100, 0)
    assert is_taken(120, 20)
    assert not is_taken(120, 19)
    assert not is_taken(199, 98)
    assert not is_taken(200, 99)


@given(due_ms=st.integers(1, 2**50), precision_ms=st.sampled_from([1, 7, 100, 1000, 60_000]))
def test_the_slot_of_a_stored_message_is_recognised(due_ms: int, precision_ms: int) -> None:
    out = (due_ms - 1) // precision_ms * precision_ms
    properties = {"REAL_TOPIC": "T", "TIMER_OUT_MS": str(out), "TIMER_DELIVER_MS": str(due_ms)}
    found = waiting_of(properties, precision_ms)
    assert found is not None
    assert (found.slot_ms, found.due_ms) == (out, due_ms)


def test_a_message_stored_by_rocketmq_is_not_delivered_early() -> None:
    """It knows the slot only; the sender's delay began at a time that nobody wrote down."""
    found = waiting_of({"REAL_TOPIC": "T", "TIMER_OUT_MS": "5000", "TIMER_DELAY_SEC": "3"}, 1000)
    assert found is not None
    assert (found.slot_ms, found.due_ms) == (5000, 6000)


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "TIMER_OUT_MS": "x"}]
)
def test_a_message_without_a_time_does_not_wait(properties: dict[str, str]) -> None:
    assert waiting_of(properties, 1000) is None
