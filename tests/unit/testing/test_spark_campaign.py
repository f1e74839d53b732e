"""Whom a campaign kills."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.testing.spark_campaign import SHARES, deck


@given(seed=st.integers(), count=st.integers(min_value=1, max_value=200))
def test_every_kind_gets_its_share(seed: int, count: int) -> None:
    kinds = deck(random.Random(seed), count)
    assert len(kinds) == count
    assert kinds == deck(random.Random(seed), count)
    found = Counter(kinds)
    for kind, share in SHARES.items():
        assert found[kind] >= count * share // sum(SHARES.values())


def test_fifty_kills_have_eight_drivers_at_least() -> None:
    assert Counter(deck(random.Random(1), 50))["driver"] >= 8
