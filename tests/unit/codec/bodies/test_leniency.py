from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.leniency import decode_body, enum_name, fill, without_nulls
from rocketpost.errors import RemoteProtocolError


class Sample(msgspec.Struct):
    name: str = "unset"
    count: int = 0
    items: list[str] = []


def test_nulls_are_left_out_everywhere() -> None:
    value = {"a": None, "b": {"c": None, "d": 1}, "e": [None, {"f": None}]}
    assert without_nulls(value) == {"b": {"d": 1}, "e": [{}]}


def test_a_null_member_is_the_same_as_none() -> None:
    body = b'{"name":null,"count":"7","items":null,"unknown":1}'
    assert decode_body(body, Sample) == Sample(count=7)


@pytest.mark.parametrize("body", [b"", b"{", b'{"count":"many"}', b"[]", b'{"items":{}}'])
def test_values_that_do_not_fit_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(body, Sample)
    with pytest.raises(RemoteProtocolError):
        fill(Sample, {"count": []})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("two", "TWO"),
        ("TWO", "TWO"),
        (1, "TWO"),
        (0, "ONE"),
        (2, "ONE"),
        (-1, "ONE"),
        (True, "ONE"),
        ("three", "ONE"),
        ("1", "ONE"),
        (None, "ONE"),
        ([], "ONE"),
    ],
)
def test_enums_are_names_in_any_case_or_ordinals(value: object, name: str) -> None:
    assert enum_name(value, ("ONE", "TWO"), "ONE") == name
