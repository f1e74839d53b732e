from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.errors import LocalProtocolError

texts = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)),
    min_size=1,
    max_size=20,
)


def test_java_writes_the_last_separator_too() -> None:
    assert encode_properties({"TAGS": "TagA"}) == bytes.fromhex("54414753015461674102")


@given(st.dictionaries(texts, texts, max_size=8))
def test_properties_come_back(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(memoryview(data)) == properties


@pytest.mark.parametrize(
    ("data", "meaning"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"\x01b\x02a\x01\x02x\x02\x02k\x01v\x02", {"k": "v"}),
        (b"k\x01v\x02k\x01w\x02", {"k": "w"}),
        (b"k\x01\xff\x02", {"k": "\ufffd"}),
    ],
)
def test_properties_of_other_writers_are_read_as_java_reads_them(
    data: bytes, meaning: dict[str, str]
) -> None:
    assert decode_properties(data) == meaning


@pytest.mark.parametrize(
    "wrong", [{"": "v"}, {"a\x01": "v"}, {"a\x02": "v"}, {"a": "v\x02"}, {"a": "v" * 32767}]
)
def test_properties_that_cannot_be_read_back_are_not_written(wrong: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties(wrong)


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert encode_properties({"a": "\ud800"}) == b"a\x01?\x02"
