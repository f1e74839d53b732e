from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.model.failure import (
    KIND_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    ConsumeFailure,
    failure_in,
    failure_of,
    make_failure,
)


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (ValueError(), "ValueError"),
        (OddError(), f"{__name__}.OddError"),
        (KeyError("two\nlines"), r"KeyError: 'two\nlines'"),
    ],
)
def test_an_exception_is_described_by_class_and_text(error: Exception, text: str) -> None:
    assert str(failure_of(error)) == text


def test_without_a_kind_there_is_none() -> None:
    assert make_failure(" \x01 ", "text") is None
    assert failure_in({"CONSUME_FAILURE_TEXT": "text"}) is None


@given(st.text(max_size=400), st.text(max_size=800))
def test_any_text_fits_into_properties_and_comes_back(kind: str, text: str) -> None:
    found = make_failure(kind, text)
    if found is None:
        return
    assert len(found.kind) <= KIND_CHARACTERS_MAX
    assert len(found.text) <= TEXT_CHARACTERS_MAX
    assert "\n" not in str(found)
    assert failure_in(decode_properties(encode_properties(found.properties))) == found
    assert isinstance(found, ConsumeFailure)
