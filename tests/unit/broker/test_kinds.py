"""Who claims which message."""

from __future__ import annotations

import pytest

from rocketpost.broker.kinds import (
    DeadLetters,
    DelayLevels,
    HalfMessages,
    RefusedTimers,
    real_queue_id,
    with_properties,
)
from rocketpost.codec.faults import Fault, MessageIllegal, NoPermission
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.store.draft import Draft

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def draft(topic: str = "T", *, reconsume_times: int = 0, **properties: str) -> Draft:
    encoded = encode_properties(properties)
    return Draft(topic, 3, 0, 0, 1, HOST, HOST, reconsume_times, 0, b"b", encoded, 0, ("U",))


@pytest.mark.parametrize(
    ("message", "is_refused"),
    [
        (draft(TRAN_MSG="true"), True),
        (draft(TRAN_MSG="TRUE", DELAY="3"), True),
        (draft(TRAN_MSG="true", reconsume_times=1), True),
        (draft(TRAN_MSG="true", DELAY="3", reconsume_times=1), False),
        (draft(TRAN_MSG="false"), False),
    ],
)
def test_a_half_message_is_refused_but_not_its_retry(message: Draft, is_refused: bool) -> None:
    properties = decode_properties(message.properties)
    if is_refused:
        with pytest.raises(NoPermission):
            HalfMessages().claim(message, properties)
    else:
        assert HalfMessages().claim(message, properties) is None


def test_a_dead_letter_waits_for_nothing() -> None:
    claimed = DeadLetters().claim(draft("%DLQ%G", DELAY="5"), {"DELAY": "5", "a": "b"})
    assert claimed is not None
    assert decode_properties(claimed.properties) == {"DELAY": "-1", "a": "b"}
    assert DeadLetters().claim(draft(DELAY="5"), {"DELAY": "5"}) is None


def test_a_level_above_the_highest_is_the_highest() -> None:
    claimed = DelayLevels(level_max=4).claim(draft(DELAY="9"), {"DELAY": "9"})
    assert claimed is not None
    assert (claimed.topic, claimed.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert real_queue_id(claimed) == 3
    assert DelayLevels(level_max=4).claim(draft(DELAY="0"), {"DELAY": "0"}) is None


def test_a_level_that_is_no_number_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="no number"):
        DelayLevels(level_max=4).claim(draft(DELAY="x"), {"DELAY": "x"})


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_timed_message_is_refused(name: str) -> None:
    with pytest.raises(Fault, match="timed"):
        RefusedTimers().claim(draft(), {name: "1"})
    assert RefusedTimers().claim(draft(), {"a": "1"}) is None


def test_properties_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(MessageIllegal):
        with_properties(draft(), {"a\x01": "b"})
