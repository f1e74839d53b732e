from __future__ import annotations

import pytest

from rocketpost.admin.body import body_text


@pytest.mark.parametrize(
    ("body", "form", "text"),
    [
        ("grün".encode(), "utf-8", "grün"),
        ("grün".encode("latin-1"), "ISO-8859-1", "grün"),
        (b"\xff", "utf-8", "\ufffd"),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"\x00\xff", "base64", "AP8="),
        (b"\x00A" * 9, "HEX", "\n"
         "00000000  00 41 00 41 00 41 00 41 00 41 00 41 00 41 00 41  .A.A.A.A.A.A.A.A\n"
         "00000010  00 41                                            .A"),
    ],
)  # fmt: skip
def test_a_body_is_shown_in_the_form_that_was_asked_for(body: bytes, form: str, text: str) -> None:
    assert body_text(body, form) == text


def test_a_body_that_is_not_json_is_shown_with_a_note() -> None:
    assert body_text(b"hello", "json").startswith("(not JSON: ")
    assert body_text(b"hello", "json").endswith(" hello")
    assert "not JSON" in body_text(b"[" * 200_000, "json")
