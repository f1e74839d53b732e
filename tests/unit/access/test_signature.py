"""Signatures: those of Apache's client, and what they do not cover."""

from __future__ import annotations

import pytest

from rocketpost.access.signature import is_signed, sign

FIELDS = {"topic": "TopicA", "queueId": "3", "AccessKey": "rocketmq2"}
SECRET = b"12345678"


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"", "PBAsB9V9o+CXiipYdsashslZpyM="), (b'{"a":1}', "8H5/T0EYWjuPMEOlrwQikxumHAA=")],
)
def test_signatures_are_those_of_apaches_client(body: bytes, expected: str) -> None:
    assert sign(SECRET, FIELDS, (body,)) == expected
    signed = {**FIELDS, "Signature": expected}
    assert sign(SECRET, signed, (body[:3], body[3:])) == expected
    assert is_signed(SECRET, signed, body, version=479)
    assert not is_signed(b"other", signed, body, version=479)
    assert not is_signed(SECRET, {**signed, "queueId": "4"}, body, version=479)
    assert not is_signed(SECRET, signed, body + b"x", version=479)


@pytest.mark.parametrize("wrong", ["", "x", "\u00e9", "PBAsB9V9o+CXiipYdsashslZpyM"])
def test_another_text_is_no_signature(wrong: str) -> None:
    assert not is_signed(SECRET, {**FIELDS, "Signature": wrong}, b"", version=479)
    assert not is_signed(SECRET, FIELDS, b"", version=479)


def test_old_clients_add_one_field_after_they_sign() -> None:
    text = sign(SECRET, FIELDS, ())
    signed = {**FIELDS, "Signature": text, "_UNIQUE_KEY_QUERY": "true"}
    assert is_signed(SECRET, signed, b"", version=399)
    assert not is_signed(SECRET, signed, b"", version=400)


def test_text_that_is_not_unicode_can_be_signed() -> None:
    assert sign(SECRET, {"a": "\ud800"}, ()) == sign(SECRET, {"a": "?"}, ())
