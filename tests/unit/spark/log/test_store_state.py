"""State of a log according to the files beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.spark.log.store_state import read_state
from rocketpost.store.layout import Layout

from ..made_records import record
from ..stores import write_checkpoint, write_log, write_queues


def test_an_empty_store(tmp_path: Path) -> None:
    state = read_state(Layout(str(tmp_path)))
    assert (state.topics, state.settled, state.newest) == (frozenset(), 0, -1)


def test_ends_of_queues(tmp_path: Path) -> None:
    some = write_log(
        tmp_path,
        [record(queue_id=at % 3, queue_offset=at // 3) for at in range(250)],
        segment_bytes=1 << 16,
    )
    write_queues(tmp_path, some[:200])  # over several files of a queue
    state = read_state(Layout(str(tmp_path)))
    assert state.topics == {"T"}
    assert state.newest == state.settled == some[199].position
    assert state.safe_ms == 0
    # A checkpoint of ours knows better: queues are written one by one.
    write_checkpoint(tmp_path, some[150].position)
    state = read_state(Layout(str(tmp_path)))
    assert (state.newest, state.settled) == (some[199].position, some[150].position)
    assert state.safe_ms is None


def test_topics_and_deletions(tmp_path: Path) -> None:
    (tmp_path / "batchconsumequeue/Batches/0").mkdir(parents=True)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(
        '{"dataVersion":{},"topicConfigTable":{"New":{"topicName":"New"}}}'
    )
    (tmp_path / "config/droppedTopics.json").write_text(
        '{"serial":3,"topics":{"Old":{"position":77,"next":{"0":5}}}}'
    )
    state = read_state(Layout(str(tmp_path)))
    assert state.topics == {"Batches", "New"}
    assert state.batch_topics == {"Batches"}
    assert state.dead_before == {"Old": 77}


@pytest.mark.parametrize("name", ["topics.json", "droppedTopics.json"])
def test_a_damaged_table_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text("{")
    with pytest.raises(StoreError, match=f"{name} cannot be read"):
        read_state(Layout(str(tmp_path)))
