from __future__ import annotations

from rocketpost.broker.transaction.table import Fate
from rocketpost.broker.transaction.tally import TransactionTally


def test_ends_are_counted_by_outcome_and_topic() -> None:
    tally = TransactionTally()
    tally.count(Fate.COMMIT, "A", 4000)
    tally.count(Fate.COMMIT, "B", 70_000)
    tally.count(Fate.COMMIT, "B")
    tally.count(Fate.ROLLBACK, "A", 1000)
    assert tally.by_topic(Fate.COMMIT) == [("A", 1), ("B", 2)]
    assert [tally.total(fate) for fate in (Fate.COMMIT, Fate.ROLLBACK, Fate.DISCARD)] == [3, 1, 0]
    # Times of commits only, in seconds, as far as they are known.
    assert tally.times["A"].sum == 4
    assert tally.times["B"].counts[2] == tally.times["B"].count == 1
