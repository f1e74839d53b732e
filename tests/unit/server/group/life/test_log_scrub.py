"""The majority that decides which bytes of old log are right."""

from __future__ import annotations

import pytest

from rocketpost.server.group.life.log_scrub import choose_right

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.mark.parametrize(
    ("digests", "right"),
    [
        ({"n0": A, "n1": A, "n2": A}, A),
        ({"n0": A, "n1": B, "n2": B}, B),
        ({"n0": A, "n1": A}, A),
        ({"n0": A, "n1": B}, None),
        ({"n0": A, "n1": B, "n2": C}, None),
        ({"n0": A}, None),
        ({}, None),
        ({"n0": A, "n3": B, "n4": B}, None),
        ({"n0": A, "n1": A, "n3": B, "n4": B, "n5": B}, A),
    ],
)
def test_only_a_majority_of_the_voters_decides(
    digests: dict[str, bytes], right: bytes | None
) -> None:
    assert choose_right(digests, ["n0", "n1", "n2"]) == right
