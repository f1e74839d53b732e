from __future__ import annotations

import pytest

from admin.samples import make_message
from rocketpost.admin.commands.message import (
    direct_result_text,
    message_members,
    message_text,
    track_text,
)
from rocketpost.diagnosis.tracks import Track, TrackType


@pytest.mark.usefixtures("utc")
def test_a_message_is_shown_as_by_the_original() -> None:
    message = make_message(KEYS="invoice", TAGS="paid", UNIQ_KEY="FD00", WAIT="true")
    assert message_text(message, path="/tmp/x", charset="utf-8").splitlines() == [
        "OffsetID:            7F0000010000855D0000000000000312",
        "Topic:               Demo",
        "Tags:                [paid]",
        "Keys:                [invoice]",
        "Queue ID:            1",
        "Queue Offset:        5",
        "CommitLog Offset:    786",
        "Reconsume Times:     0",
        "Born Timestamp:      2026-11-15 23:15:28,182",
        "Store Timestamp:     2026-11-15 23:15:28,244",
        "Born Host:           127.0.0.1:44872",
        "Store Host:          127.0.0.1:34141",
        "System Flag:         0",
        "Properties:          {KEYS=invoice, TAGS=paid, UNIQ_KEY=FD00, WAIT=true}",
        "Message Body Path:   /tmp/x",
        "Message Body:        body-0",
    ]


def test_a_body_is_printed_only_when_asked_for() -> None:
    text = message_text(make_message(), path="/tmp/x", charset=None)
    assert "Message Body:" not in text
    assert "Tags:                [null]" in text


def test_a_body_that_is_no_text_has_its_size_only() -> None:
    members = message_members(make_message(b"\xff\xfe"))
    assert members["body"] is None
    assert members["bodyBytes"] == 2
    assert message_members(make_message())["body"] == "body-0"


def test_a_consumers_report_looks_as_in_java() -> None:
    report = {
        "order": False,
        "autoCommit": True,
        "consumeResult": "CR_SUCCESS",
        "spentTimeMills": 3,
    }
    assert direct_result_text(report) == (
        "ConsumeMessageDirectlyResult [order=false, autoCommit=true, consumeResult=CR_SUCCESS, "
        "remark=null, spentTimeMills=3]"
    )


def test_a_track_looks_as_in_java() -> None:
    assert track_text(Track("demo-group", TrackType.CONSUMED)) == (
        "MessageTrack [consumerGroup=demo-group, trackType=CONSUMED, exceptionDesc=null]"
    )
    offline = Track("demo-group", TrackType.NOT_ONLINE, "CODE:206 DESC:not online")
    assert track_text(offline).endswith("exceptionDesc=CODE:206 DESC:not online]")
