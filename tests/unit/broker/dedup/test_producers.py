"""Cases that the model in ``tests/simulation/store/test_once.py`` leaves out."""

from __future__ import annotations

import json

import pytest

from rocketpost.broker.dedup.producers import PLACES_MIN, ProducerLimits, ProducerTable
from rocketpost.codec.faults import ProducerFenced, SequenceForgotten, SequenceOutOfOrder
from rocketpost.errors import StoreError
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.stamp import Stamp
from rocketpost.store.draft import Appended


def place(position: int, ms: int = 1) -> Appended:
    return Appended(Position(position), 10, QueueOffset(0), ms, "T", 0, 0, ("U",), None)


def table(*sequences: int, epoch: int = 0, **limits: int) -> ProducerTable:
    made = ProducerTable(ProducerLimits(**limits))
    for sequence in sequences:
        made.take(Stamp("p", epoch, sequence), place(sequence * 10))
    made.commit()
    return made


def test_a_duplicate_is_recognised_from_the_append_until_an_undo() -> None:
    producers = table()
    stamp = Stamp("p", 0, 1)
    assert not producers.is_stored(stamp)
    producers.take(stamp, place(7))
    assert producers.is_stored(stamp)
    assert producers.place(stamp) == place(7)
    producers.undo()
    assert not producers.is_stored(stamp)
    assert producers.place(stamp) is None


def test_an_epoch_that_could_not_be_written_fences_nobody() -> None:
    producers = table(1)
    producers.take(Stamp("p", 5, 0), place(100))
    with pytest.raises(ProducerFenced):
        producers.is_stored(Stamp("p", 0, 2))
    assert producers.is_stored(Stamp("p", 5, 0))
    producers.undo()
    assert producers.is_stored(Stamp("p", 0, 1))
    assert not producers.is_stored(Stamp("p", 0, 2))


def test_order_is_kept_only_where_it_is_asked_for() -> None:
    producers = table(1, 2)
    assert not producers.is_stored(Stamp("p", 0, 9))
    assert not producers.is_stored(Stamp("p", 0, 9), 2)
    with pytest.raises(SequenceOutOfOrder):
        producers.is_stored(Stamp("p", 0, 9), 8)
    producers.take(Stamp("p", 0, 8), place(80))
    assert not producers.is_stored(Stamp("p", 0, 9), 8)
    assert producers.is_stored(Stamp("p", 0, 2), 1000), "what is stored needs no predecessor"


def test_a_sequence_too_old_to_be_known_is_refused() -> None:
    producers = table(1, 3, 5, runs_max=2)
    with pytest.raises(SequenceForgotten):
        producers.is_stored(Stamp("p", 0, 1))
    assert producers.is_stored(Stamp("p", 0, 3))


def test_the_places_of_the_newest_messages_are_known() -> None:
    producers = table()
    for sequence in range(PLACES_MIN * 3):
        producers.take(Stamp("p", 0, sequence), place(sequence))
        producers.commit()
        oldest = Stamp("p", 0, max(0, sequence - PLACES_MIN + 1))
        assert producers.place(oldest) is not None
    assert producers.is_stored(Stamp("p", 0, 0))
    assert producers.place(Stamp("p", 0, 0)) is None


def test_a_snapshot_holds_everything() -> None:
    producers = table(1, 2, 7, epoch=3)
    other = ProducerTable()
    other.load(producers.to_json(1234))
    assert list(other.states()) == list(producers.states())
    assert (other.position, other.anchor) == (1234, (70, 1))
    assert [each.last_sequence for each in other.states("p")] == [7]
    assert list(other.states("q")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"position": "x"},
        {"producers": [{"producerId": "a b"}]},
        {"producers": [{"producerId": "p", "runs": [[3, 3]]}]},
        {"producers": [{"producerId": "p", "runs": [[1, 2, 3]]}]},
    ],
)
def test_a_damaged_snapshot_is_refused(change: dict[str, object]) -> None:
    text = json.dumps(json.loads(table(1).to_json(5)) | change)
    with pytest.raises(StoreError, match="producerState"):
        ProducerTable().load(text.encode())


def test_the_producer_that_was_silent_longest_is_forgotten_first() -> None:
    producers = ProducerTable(ProducerLimits(producers_max=2, idle_ms_max=100))
    for at, name in enumerate("abca"):
        producers.replay(Stamp(name, 0, at), position=at, store_ms=at)
    assert [each.producer_id for each in producers.states()] == ["a", "c"]
    assert producers.forgotten == 2
    producers.expire(102)
    assert [each.producer_id for each in producers.states()] == ["a", "c"]
    producers.expire(103)
    assert [each.producer_id for each in producers.states()] == ["a"]
