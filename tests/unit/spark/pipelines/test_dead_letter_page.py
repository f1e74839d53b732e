"""A page of dead letters says why they died, and takes no text of theirs for markup."""

from __future__ import annotations

import re

import msgspec

from rocketpost.spark.pipelines.dead_letter_page import page
from rocketpost.spark.pipelines.dead_letter_report import Cause, LetterReport, Text
from rocketpost.spark.pipelines.timeline import Moment

EVIL = "<script>alert('x')</script>"
REPORT = LetterReport(
    group="billing",
    letters=1200,
    without_origin=3,
    worn_out=7,
    redrives_max=3,
    first_ms=1_700_000_000_000,
    last_ms=1_700_000_600_000,
    causes=(
        Cause("KeyError", "Orders", 1197, 1_700_000_000_000, 1_700_000_600_000, EVIL),
        Cause("unknown", None, 3, 1_700_000_000_000, 1_700_000_600_000, ""),
    ),
    texts=(Text("KeyError", EVIL, 1197, 1_700_000_600_000),),
    timeline=(Moment(1_700_000_000_000, 1000), Moment(1_700_000_300_000, 200)),
)


def test_a_page_shows_the_causes_of_dead_letters() -> None:
    text = page(REPORT)
    assert "1,200 dead letters" in text
    assert "7 were sent again 3 times or more" in text
    assert "3 do not name the topic that they came from" in text
    assert "<svg" in text


def test_text_of_letters_is_no_markup_and_nothing_is_loaded() -> None:
    text = page(REPORT)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2
    assert not re.search(r"https?:|src=|@import|url\(", text)


def test_a_group_without_dead_letters_has_a_page() -> None:
    none = msgspec.structs.replace(
        REPORT, letters=0, without_origin=0, worn_out=0, first_ms=None, last_ms=None,
        causes=(), texts=(), timeline=(),
    )  # fmt: skip
    text = page(none)
    assert "no dead letters" in text
    assert "nothing died" in text
