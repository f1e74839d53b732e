"""The files that compaction chooses, which decides whether it ever ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.spark.lake.lake import DataFile
from rocketpost.spark.pipelines.compaction import plan_merges

SIZE = 100
_paths = st.sampled_from(["data/b/topic=A/date=1/x", "data/b/topic=B/date=1/x"])
_files = st.lists(st.builds(DataFile, _paths, st.integers(1, 3 * SIZE)), max_size=40)


def file(size: int, partition: str = "topic=A/date=1") -> DataFile:
    return DataFile(f"data/batch=1-x/{partition}/f", size)


def test_only_small_files_that_can_be_merged_are_chosen() -> None:
    assert plan_merges([], SIZE) == []
    assert (
        plan_merges([file(10), file(10, "topic=B/date=1"), file(10, "topic=A/date=2")], SIZE) == []
    )
    assert plan_merges([file(50), file(99), file(49)], SIZE) == []  # one is small
    assert plan_merges([file(49), file(49), file(300)], SIZE) == [([file(49), file(49)], 1)]
    assert [merge.into for merge in plan_merges([file(40)] * 6, SIZE)] == [2]


@given(_files, st.floats(0.05, 1.2))
def test_it_ends_however_much_merged_files_shrink(files: list[DataFile], shrinks: float) -> None:
    while merges := plan_merges(files, SIZE):
        before = len(files)
        for merge in merges:
            for each in merge.files:
                files.remove(each)
            size = max(1, int(sum(each.bytes for each in merge.files) * shrinks / merge.into))
            files += [merge.files[0]._replace(bytes=size)] * merge.into
        assert len(files) < before
