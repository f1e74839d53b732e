"""Terms of a log's bytes, against a model that keeps the term of every byte."""

from __future__ import annotations

import random

import pytest

from rocketpost.raft.messages import ConflictSpan, TermSpan
from rocketpost.raft.terms import TermTable


def table(*spans: tuple[int, int]) -> TermTable:
    return TermTable(TermSpan(*span) for span in spans)


def test_terms_of_bytes() -> None:
    terms = table((1, 0), (3, 10))
    assert [terms.term_before(position) for position in (0, 1, 10, 11, 99)] == [0, 1, 1, 3, 3]
    assert [terms.term_at(position) for position in (0, 9, 10)] == [1, 1, 3]
    assert terms.last_term == 3
    assert [terms.start_of(term) for term in (1, 2, 3)] == [0, None, 10]


def test_bytes_before_the_first_span_have_term_0() -> None:
    terms = table((2, 100))
    assert terms.term_before(100) == 0
    assert terms.between(50, 150) == (TermSpan(0, 50), TermSpan(2, 100))
    assert table().last_term == 0


def test_spans_ascend() -> None:
    terms = table((2, 10))
    terms.add(TermSpan(2, 30))
    assert terms.spans == (TermSpan(2, 10),)
    for span in (TermSpan(1, 50), TermSpan(3, 10), TermSpan(0, 0), TermSpan(2, 5)):
        with pytest.raises(AssertionError):
            terms.add(span)


def test_cut_and_trim() -> None:
    terms = table((1, 0), (2, 10), (3, 20))
    terms.cut(20)
    assert terms.spans == (TermSpan(1, 0), TermSpan(2, 10))
    terms.trim(10)
    assert terms.spans == (TermSpan(1, 0), TermSpan(2, 10))
    terms.trim(11)
    assert terms.spans == (TermSpan(2, 10),)
    assert terms.before(10) == ()
    assert terms.before(11) == (TermSpan(2, 10),)
    assert terms.between(15, 15) == ()


def test_a_conflict_names_the_whole_span() -> None:
    follower = table((1, 0), (2, 20), (3, 50))
    assert follower.conflict(90, 5, end=110) == ConflictSpan(3, 50, 110)
    assert follower.conflict(90, 2, end=110) == ConflictSpan(2, 20, 50)
    assert table((4, 0)).conflict(30, 2, end=40) == ConflictSpan(0, 0, 0)


class Byte:
    """Logs as lists with the term of every byte; leaders of a term write one list each."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.logs: list[list[int]] = [[]]
        for term in range(1, chance.randint(2, 9)):
            log = list(chance.choice(self.logs))
            del log[chance.randint(0, len(log)) :]
            written = log + [term] * chance.randint(1, 6)
            self.logs.append(written)
            for _ in range(chance.randint(0, 2)):
                self.logs.append(written[: chance.randint(len(log) + 1, len(written))])
        self.one, self.other = chance.choice(self.logs), chance.choice(self.logs)


def spans_of(log: list[int]) -> TermTable:
    terms = TermTable()
    for position, term in enumerate(log):
        terms.add(TermSpan(term, position))
    return terms


def common(one: list[int], other: list[int]) -> int:
    """Return the length of the equal beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("block", range(10))
def test_logs_meet_within_a_round_trip_per_term(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        byte = Byte(seed)
        leader, follower = spans_of(byte.one), spans_of(byte.other)
        equal = common(byte.one, byte.other)
        prev, rounds = len(byte.one), 0
        while prev > len(byte.other) or follower.term_before(prev) != leader.term_before(prev):
            assert prev > equal
            conflict = follower.conflict(prev, leader.term_before(prev), len(byte.other))
            point = leader.meeting_point(conflict, len(byte.one))
            assert equal <= point < prev, f"seed {seed}"
            prev, rounds = point, rounds + 1
        assert prev == equal, f"seed {seed}"
        assert rounds <= len(set(byte.one[equal:]) | set(byte.other[equal:])), f"seed {seed}"


@pytest.mark.parametrize("block", range(10))
def test_divergence_is_the_first_different_byte(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        byte = Byte(seed)
        leader, follower = spans_of(byte.one), spans_of(byte.other)
        equal = common(byte.one, byte.other)
        end = min(len(byte.one), len(byte.other))
        spans = leader.between(0, len(byte.one))
        assert follower.divergence(spans, 0, end) == (equal if equal < end else None)
        start = equal // 2
        later = leader.between(start, len(byte.one))
        assert follower.divergence(later, start, end) == (equal if equal < end else None)
