from __future__ import annotations

from pathlib import Path

from rocketpost.spark.lake.lake import open_lake
from rocketpost.spark.pipelines.history import _find_live_starts
from rocketpost.spark.source.plan import Bounds, QueueKey, Range

from ..lakes import A, commit


def test_all_messages_of_a_topic_missing_in_the_lake_must_be_live(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    commit(lake, 0, Range(A, 5, 9))
    bounds = {
        A: Bounds(7, 20),
        A._replace(queue_id=1): Bounds(3, 4),  # had nothing left when the archive began
        QueueKey("Other", "a", 0): Bounds(3, 4),
    }
    assert list(_find_live_starts(lake.snapshot(), bounds).values()) == [9, 3, 0]
