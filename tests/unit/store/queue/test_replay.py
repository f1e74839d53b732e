from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.queue.files import ENTRY_BYTES, FILLER, QueueFiles
from rocketpost.store.queue.replay import PlacedEntry, QueueReplay
from rocketpost.store.queue.table import QueueTable


class Replay:
    """Replays records of one queue, given by their offsets."""

    def __init__(self, root: Path, *, begins_anywhere: bool = False, is_foreign: bool = False):
        layout = Layout(str(root))
        files = QueueFiles(RealFiles(), file_bytes=100 * ENTRY_BYTES)
        deleted_topics = DeletedTopics(RealFiles(), layout.deleted_topics)
        self.table = QueueTable(
            layout, files, deleted_topics, store_time=lambda position, pages: -1
        )
        self.refused: list[int] = []
        self.position = 0
        self.replay = QueueReplay(
            self.table,
            begins_anywhere=begins_anywhere,
            is_foreign=is_foreign,
            claim_at=lambda position: None,
            on_contradiction=lambda placed, *_: self.refused.append(placed.position),
        )

    def put(self, *offsets: int) -> None:
        for offset in offsets:
            self.position += 100
            self.replay.put("T", 0, PlacedEntry(offset, self.position, 100, 0))

    def finish(self) -> list[int | None]:
        """Return the position at each offset, None for fillers."""
        self.replay.finish()
        queue = self.table.get(("T", 0))
        if queue is None:
            return []
        found: list[int | None] = [None] * queue.first
        for offset in range(queue.first, queue.end):
            found.append(
                None if queue.read(offset, 1) == FILLER else (queue.entry(offset) or (0,))[0]
            )
        return found


def test_a_sequence(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, 2)
    assert replay.finish() == [100, 200, 300]


@pytest.mark.parametrize("wrong", [7, 0, 1, 2**40])
def test_a_wrong_offset_is_refused_and_its_true_one_kept(tmp_path: Path, wrong: int) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, wrong, 3, 4)
    assert replay.finish() == [100, 200, None, 400, 500]
    assert replay.refused == [300]


@pytest.mark.parametrize("alien", [7, 0, 2**40])
def test_a_record_of_another_queue_is_refused(tmp_path: Path, alien: int) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, alien, 2, 3)
    assert replay.finish() == [100, 200, 400, 500]
    assert replay.refused == [300]


def test_of_two_records_that_claim_one_offset_one_is_refused(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, 1, 2, 3)
    assert replay.finish() == [100, 200, 400, 500]
    assert replay.refused == [300]


def test_a_gap_that_two_records_confirm_is_one(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, 4, 5)
    assert replay.finish() == [100, 200, None, None, 300, 400]
    assert replay.refused == []


def test_gaps_one_after_the_other(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 2, 4, 6)
    assert replay.finish() == [100, None, 200, None, 300, None, 400]


def test_the_last_record_may_be_after_a_small_gap(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, 4)
    assert replay.finish() == [100, 200, None, None, 300]


@pytest.mark.parametrize("wrong", [2**40, 0])
def test_the_last_record_cannot_be_anywhere(tmp_path: Path, wrong: int) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1, wrong)
    assert replay.finish() == [100, 200, None]  # which may have been its place
    assert replay.refused == [300]


def test_a_queue_may_begin_anywhere_if_older_records_expired(tmp_path: Path) -> None:
    replay = Replay(tmp_path, begins_anywhere=True)
    replay.put(50)
    assert replay.finish() == [None] * 50 + [100]


def test_a_queue_that_nobody_knew_begins_at_its_first_offset(tmp_path: Path) -> None:
    """Else a flipped bit in a topic's name would make a queue."""
    replay = Replay(tmp_path)
    replay.put(50)
    assert replay.finish() == []
    assert replay.refused == [100]
    assert len(replay.table) == 0


def test_a_topic_created_again_by_java_starts_at_offset_0(tmp_path: Path) -> None:
    replay = Replay(tmp_path, is_foreign=True)
    replay.put(0, 1, 2, 0, 1)
    assert replay.finish() == [400, 500]


def test_a_lost_record_keeps_its_offset(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.put(0, 1)
    replay.replay.put_lost("T", 0, PlacedEntry(2, 300, 100, 0))
    replay.position = 300
    replay.put(3)
    assert replay.finish() == [100, 200, None, 400]
    assert replay.refused == []
