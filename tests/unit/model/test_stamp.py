from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.model.stamp import (
    NUMBER_MAX,
    PRODUCER_ID_MAX,
    Stamp,
    parse_field,
    parse_property,
    producer_id_problem,
)

visible = st.characters(min_codepoint=33, max_codepoint=126)
ids = st.text(visible, min_size=1, max_size=PRODUCER_ID_MAX)
numbers = st.integers(0, NUMBER_MAX)
stamps = st.builds(Stamp, ids, numbers, numbers)


@given(stamp=stamps, after=st.none() | numbers)
def test_written_stamps_are_read_back(stamp: Stamp, after: int | None) -> None:
    assert parse_property(stamp.to_property()) == stamp
    assert parse_field(stamp.to_field(after)) == (stamp, after)


@given(text=st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for parse in (parse_property, parse_field):
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1:2", "1:2:", "-1:2:p", "1:x:p", "1:٣:p", "1:2:a b", f"1:{2**63 - 1}:p"]
)
def test_text_that_is_no_stamp(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_property(text)


def test_ids_are_short_visible_ascii() -> None:
    assert producer_id_problem("query-1/3:x") is None
    for wrong in ("", "a b", "a\x02", "ä", "x" * (PRODUCER_ID_MAX + 1)):
        assert producer_id_problem(wrong)


def test_messages_of_a_batch_count_on() -> None:
    assert Stamp("p", 1, 5).plus(3) == Stamp("p", 1, 8)
