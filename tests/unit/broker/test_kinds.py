"""The kinds that claim a message."""

from __future__ import annotations

import pytest

from rocketpost.broker.kinds import (
    DeadLetters,
    DelayLevels,
    HalfMessages,
    real_queue,
    with_properties,
)
from rocketpost.broker.transaction.table import PENDING_MAX
from rocketpost.codec.faults import Fault, MessageIllegal, NoPermission, SystemBusy
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.store.draft import Draft

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def draft(topic: str = "T", *, reconsume_times: int = 0, **properties: str) -> Draft:
    encoded = encode_properties(properties)
    return Draft(topic, 3, 0, 0, 1, HOST, HOST, reconsume_times, 0, b"b", encoded, 0, ("U",))


@pytest.mark.parametrize(
    ("message", "is_half"),
    [
        (draft(TRAN_MSG="true", PGROUP="g", UNIQ_KEY="k"), True),
        (draft(TRAN_MSG="TRUE", PGROUP="g", UNIQ_KEY="k", DELAY="0"), True),
        (draft(TRAN_MSG="true", PGROUP="g", UNIQ_KEY="k", reconsume_times=1), True),
        (draft(TRAN_MSG="true", DELAY="3", reconsume_times=1), False),
        (draft(TRAN_MSG="false"), False),
    ],
)
def test_issue_1648_a_half_message_is_prepared_but_not_its_retry(
    message: Draft, is_half: bool
) -> None:
    """RocketMQ took what a consumer sent back for a new half."""
    prepared = HalfMessages().prepare(message, decode_properties(message.properties))
    if not is_half:
        assert prepared is None
        return
    assert prepared is not None
    assert (prepared.topic, prepared.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert decode_properties(prepared.properties)["REAL_TOPIC"] == message.topic
    assert real_queue(prepared) == (message.topic, message.queue_id)


@pytest.mark.parametrize(
    ("more", "fault", "reason"),
    [
        ({"DELAY": "3"}, MessageIllegal, "cannot be delayed"),
        ({"TIMER_DELAY_MS": "3"}, MessageIllegal, "cannot be delayed"),
        ({"PGROUP": ""}, MessageIllegal, "producer group"),
        ({"x": "y" * 32_650}, MessageIllegal, "has room for"),
    ],
)
def test_issue_1540_an_invalid_half_message_is_refused(
    more: dict[str, str], fault: type[Fault], reason: str
) -> None:
    """RocketMQ lost the destination of a delayed half, and filled the half topic with it."""
    properties = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "k", **more}
    with pytest.raises(fault, match=reason):
        HalfMessages().prepare(draft(), properties)


def test_halves_have_a_bound_and_can_be_rejected() -> None:
    kind = HalfMessages()
    kind.pending_count = lambda: PENDING_MAX
    with pytest.raises(SystemBusy, match="already pending"):
        kind.prepare(draft(), {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "k"})
    kind.is_rejecting = True
    with pytest.raises(NoPermission, match="rejectTransactionMessage"):
        kind.prepare(draft(), {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "k"})


def test_a_dead_letter_waits_for_nothing() -> None:
    prepared = DeadLetters().prepare(draft("%DLQ%G", DELAY="5"), {"DELAY": "5", "a": "b"})
    assert prepared is not None
    assert decode_properties(prepared.properties) == {"DELAY": "-1", "a": "b"}
    assert DeadLetters().prepare(draft(DELAY="5"), {"DELAY": "5"}) is None


def test_a_level_above_the_highest_is_the_highest() -> None:
    prepared = DelayLevels(level_max=4).prepare(draft(DELAY="9"), {"DELAY": "9"})
    assert prepared is not None
    assert (prepared.topic, prepared.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert real_queue(prepared)[1] == 3
    assert DelayLevels(level_max=4).prepare(draft(DELAY="0"), {"DELAY": "0"}) is None


def test_a_level_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="not a number"):
        DelayLevels(level_max=4).prepare(draft(DELAY="x"), {"DELAY": "x"})


def test_properties_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(MessageIllegal):
        with_properties(draft(), {"a\x01": "b"})
