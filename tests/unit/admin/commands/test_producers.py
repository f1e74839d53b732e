from __future__ import annotations

from rocketpost.admin.commands.producers import _PRODUCERS, producer_row
from rocketpost.codec.bodies.producers import ProducerState


def test_a_producer_is_shown_with_its_newest_runs() -> None:
    state = ProducerState(
        producer_id="query/1",
        epoch=7,
        last_timestamp=1000,
        runs=[(0, 2), (5, 6), (8, 9), (12, 20)],
    )
    row = producer_row("127.0.0.1:10911", state, now_ms=3500)
    assert row == ("127.0.0.1:10911", "query/1", 7, 19, 3, 2.5, "... 5-5 8-8 12-19")
    assert "query/1" in _PRODUCERS.text([row])


def test_a_producer_that_is_only_fenced_has_no_sequence() -> None:
    row = producer_row("a", ProducerState(producer_id="p", last_timestamp=10), now_ms=5)
    assert row == ("a", "p", 0, "-", 0, 0.0, "")
