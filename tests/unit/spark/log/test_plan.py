"""How much of a log a task reads; the ways of reading are tried in ``test_log_reader``."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.spark.log.plan import choose_split_bytes

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size", "cores", "tasks"),
    [
        (10 * MIB, 8, 1),  # too little to share
        (100 * MIB, 2, 2),
        (1024 * MIB, 2, 4),
        (1200 * MIB, 2, 6),
        (1024 * MIB, 16, 16),
        (1024 * MIB, 64, 32),
        (100 * 1024 * MIB, 2, 400),
    ],
)
def test_a_log_is_divided_evenly(size: int, cores: int, tasks: int) -> None:
    assert math.ceil(size / choose_split_bytes(size, cores)) == tasks


@given(size=st.integers(0, 2**50), cores=st.integers(1, 512))
def test_no_task_has_more_than_its_bounds(size: int, cores: int) -> None:
    assert 32 * MIB <= choose_split_bytes(size, cores) <= 256 * MIB


@given(size=st.integers(2**36, 2**50), cores=st.integers(1, 256))
def test_parts_of_a_log_are_a_multiple_of_the_cores(size: int, cores: int) -> None:
    assert math.ceil(size / choose_split_bytes(size, cores)) % cores == 0
