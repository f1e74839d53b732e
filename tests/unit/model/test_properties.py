from __future__ import annotations

import pytest

from rocketpost.model.properties import split_keys


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("", []),
        ("one", ["one"]),
        ("  one two ", ["one", "two"]),
        ("one\ttwo three\u00a0four", ["one\ttwo", "three\u00a0four"]),
    ],
)
def test_only_blanks_separate_keys(keys: str, found: list[str]) -> None:
    assert split_keys(keys) == found
