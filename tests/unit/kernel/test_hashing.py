from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Values printed by a Java shell.
KNOWN = {
    "": 0,
    "a": 97,
    "TagA": 2598919,
    "hello world": 1794106052,
    "polygenelubricants": -(2**31),
}


def java_hash(text: str) -> int:
    """Return the definition, unit by unit."""
    h = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        h = (31 * h + int.from_bytes(data[at : at + 2], "big")) % 2**32
    return h - 2**32 if h >= 2**31 else h


@pytest.mark.parametrize(("text", "known"), KNOWN.items())
def test_known_hashes(kernel: ModuleType, text: str, known: int) -> None:
    assert kernel.string_hash(text) == known


def test_the_hash_that_cannot_be_negated_is_indexed_as_zero(kernel: ModuleType) -> None:
    assert kernel.index_hash("polygenelubricants") == 0


@given(
    text=st.one_of(st.text(max_size=80), st.text(st.characters(max_codepoint=127), max_size=200))
)
def test_hash_is_javas(kernel: ModuleType, text: str) -> None:
    expected = java_hash(text)
    assert kernel.string_hash(text) == expected
    assert kernel.index_hash(text) == (0 if expected == -(2**31) else abs(expected))


def test_lone_surrogates_are_hashed_as_java_does(kernel: ModuleType) -> None:
    assert kernel.string_hash("\ud800x") == java_hash("\ud800x")


@given(head=st.text(max_size=40), tail=st.text(max_size=80))
def test_a_state_continues_where_it_stopped(kernel: ModuleType, head: str, tail: str) -> None:
    state = kernel.extend_state(0, head)
    assert 0 <= state < 2**32
    assert kernel.extend_state(state, tail) == java_hash(head + tail) % 2**32
    assert kernel.index_hash_after(state, tail) == kernel.index_hash(head + tail)


@given(text=st.text(st.sampled_from("\x00\x7f"), min_size=31, max_size=66))
def test_extreme_bytes_do_not_spill_between_lanes(kernel: ModuleType, text: str) -> None:
    assert kernel.string_hash(text) == java_hash(text)


@given(
    head=st.text(max_size=9), tails=st.lists(st.text(st.characters(max_codepoint=300)), max_size=4)
)
def test_many_hashes_at_once_are_the_same(kernel: ModuleType, head: str, tails: list[str]) -> None:
    state = kernel.extend_state(0, head)
    assert kernel.index_hashes_after(state, tails) == [kernel.index_hash(head + t) for t in tails]


@given(tail=st.text(st.characters(max_codepoint=127), min_size=9, max_size=32))
def test_keys_of_one_block_hash_the_same(kernel: ModuleType, tail: str) -> None:
    state = kernel.extend_state(0, "topic#")
    assert kernel.index_hashes_after(state, [tail]) == [kernel.index_hash("topic#" + tail)]
