"""A page says what was found, loads nothing, and takes no text of a message for markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec

from rocketpost.spark.pipelines.audit.page import page
from rocketpost.spark.pipelines.audit.report import (
    AuditReport,
    Finding,
    Hot,
    Latency,
    QueueFacts,
)
from rocketpost.spark.pipelines.timeline import Moment

EVIL = "<script>alert('x')</script>"
REPORT = AuditReport(
    topics=("Orders",),
    source="lake /lake",
    identified_by="keys",
    messages=1234,
    stored_bytes=56_789,
    first_ms=1_700_000_000_000,
    last_ms=1_700_000_600_000,
    findings=(
        Finding("holes", 0, True, "a queue offset without a message"),
        Finding("missing", 2, True, "not stored", (EVIL,)),
        Finding("late", 7, False, "late"),
    ),
    queues=(QueueFacts("Orders", "b", 0, 1234, 56_789, 0, 1233, 0, 0, 0, committed=30, lag=1204),),
    latencies=(Latency("born to stored", 30, 3.0, 9.0, 2000.0, 130_000.0, (1, 20, 9)),),
    hot_keys=(Hot(EVIL, 9),),
    timeline=(Moment(1_700_000_000_000, 1000), Moment(1_700_000_300_000, 234)),
)


def test_a_page_names_what_fails() -> None:
    text = page(REPORT)
    assert '<span class="bad">2 missing</span>' in text
    assert "nothing is missing" not in text
    assert "1,204" in text
    assert "2.2 min" in text


def test_text_of_messages_is_no_markup_and_nothing_is_loaded() -> None:
    text = page(REPORT)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2
    assert not re.search(r"https?:|src=|@import|url\(", text)


def test_plots_are_sound_drawings_of_all_counts() -> None:
    drawings = re.findall(r"<svg.*?</svg>", page(REPORT), re.DOTALL)
    assert len(drawings) == 2
    timeline, histogram = (ElementTree.fromstring(each) for each in drawings)
    heights = [float(bar.attrib["height"]) for bar in timeline.iter("rect")]
    assert heights == [140.0, round(140 * 0.234, 2)]
    assert len(list(histogram.iter("rect"))) == 3


def test_an_audit_of_nothing_has_a_page() -> None:
    empty = msgspec.structs.replace(
        REPORT, findings=(), queues=(), latencies=(), hot_keys=(), timeline=(), first_ms=None
    )
    assert "nothing is missing, duplicated or damaged" in page(empty)
    assert "nothing was stored" in page(empty)
