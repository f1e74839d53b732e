"""A consumer sees what a queue points at."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rocketpost.codec.record import Record
from rocketpost.errors import CorruptRecord
from rocketpost.model.sysflag import TRANSACTION_PREPARED
from rocketpost.spark.log.files import OnCorrupt
from rocketpost.spark.log.queue_files import Entries, QueueFiles
from rocketpost.spark.log.store_state import read_state
from rocketpost.spark.log.visibility import Visibility
from rocketpost.spark.records.chunk import Chunk
from rocketpost.store.layout import Layout

from ..made_records import laid_out, record
from ..stores import write_checkpoint, write_log, write_queues


def visible(root: Path, some: list[Record], on_corrupt: OnCorrupt = OnCorrupt.FAIL) -> list[int]:
    layout = Layout(str(root))
    data, starts = laid_out(some)
    state = read_state(layout)
    ways = [
        Visibility(layout, state, on_corrupt)
        .of(Chunk(data, starts, compiled=compiled).fields)
        .tolist()
        for compiled in (True, False)
    ]
    assert ways[0] == ways[1]
    return [at for at, is_visible in enumerate(ways[0]) if is_visible]


def stored(root: Path, *some: Record) -> list[Record]:
    return write_log(root, some, segment_bytes=1 << 16)


def test_messages_of_queues_are_visible(tmp_path: Path) -> None:
    some = stored(
        tmp_path,
        *[
            record(topic=t, queue_id=q, queue_offset=o)
            for t in "TU"
            for q in (0, 7)
            for o in (0, 1)
        ],
    )
    write_queues(tmp_path, some)
    assert visible(tmp_path, some) == list(range(8))


def test_messages_of_a_deleted_topic_are_not_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, record(topic="Gone"), record(topic="T"))
    write_queues(tmp_path, some[1:])
    assert visible(tmp_path, some) == [1]


def test_records_of_an_earlier_topic_of_this_name_are_not_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, record(queue_offset=0), record(queue_offset=0))
    write_queues(tmp_path, some[1:])
    assert visible(tmp_path, some) == [1]


def test_records_not_yet_in_the_queue_of_a_running_broker_are_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(queue_offset=at) for at in range(3)])
    write_queues(tmp_path, some[:1])
    assert visible(tmp_path, some) == [0, 1, 2]


def configure(root: Path, *topics: str) -> None:
    table = {topic: {"topicName": topic} for topic in topics}
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text(
        json.dumps({"dataVersion": {}, "topicConfigTable": table})
    )


def test_a_topic_whose_queue_files_are_missing_is_damage(tmp_path: Path) -> None:
    some = stored(tmp_path, record(topic="Lost"), record(topic="T"))
    write_queues(tmp_path, some[1:])
    configure(tmp_path, "Lost", "T")
    with pytest.raises(CorruptRecord, match=r"consumequeue/Lost/0 is missing.*view=log"):
        visible(tmp_path, some)


def test_a_missing_single_queue_counted_by_our_broker_is_an_error(tmp_path: Path) -> None:
    some = stored(tmp_path, record(queue_id=0), record(queue_id=1))
    write_queues(tmp_path, some[1:])
    configure(tmp_path, "T")
    write_checkpoint(tmp_path, some[1].position, queue_count=2)
    with pytest.raises(CorruptRecord, match=r"consumequeue/T/0 is missing"):
        visible(tmp_path, some)


def test_missing_queue_files_can_be_skipped(tmp_path: Path) -> None:
    some = stored(tmp_path, record(topic="Lost"), record(topic="T"))
    write_queues(tmp_path, some[1:])
    configure(tmp_path, "Lost", "T")
    assert visible(tmp_path, some, OnCorrupt.SKIP) == [1]


def test_a_topic_that_never_had_a_message_lacks_nothing(tmp_path: Path) -> None:
    some = stored(tmp_path, record(topic="T"))
    write_queues(tmp_path, some)
    configure(tmp_path, "Empty", "T")
    assert visible(tmp_path, some) == [0]


def test_records_before_the_files_of_a_queue_are_not_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, record(queue_offset=3), record(queue_offset=70))
    write_queues(tmp_path, some[1:])  # its file begins at offset 64
    assert visible(tmp_path, some) == [1]


def test_prepared_messages_of_old_brokers_are_not_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, record(sys_flag=TRANSACTION_PREPARED), record(queue_offset=0))
    write_queues(tmp_path, some[1:])
    assert visible(tmp_path, some) == [1]


def test_a_topic_that_has_no_queue_yet_is_known_by_its_configuration(tmp_path: Path) -> None:
    some = stored(tmp_path, record(topic="New"))
    (tmp_path / "config").mkdir()
    table = b'{"dataVersion":{},"topicConfigTable":{"New":{"topicName":"New"}}}'
    (tmp_path / "config/topics.json").write_bytes(table)
    assert visible(tmp_path, some) == [0]


def test_a_recreated_topic_shows_no_earlier_messages(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(queue_offset=at) for at in (5, 6, 0, 1)])
    write_queues(tmp_path, some[2:3])
    assert visible(tmp_path, some) == [2, 3]  # 1 is not in its queue yet; 5 and 6 are older


def test_a_recreated_topic_without_queue_files_shows_no_earlier_messages(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(queue_offset=at) for at in (0, 1, 2)])
    (tmp_path / "config").mkdir()
    table = b'{"dataVersion":{},"topicConfigTable":{"T":{"topicName":"T"}}}'
    (tmp_path / "config/topics.json").write_bytes(table)
    drops = b'{"serial":1,"topics":{"T":{"position":%d,"next":{"0":2}}}}' % some[2].position
    (tmp_path / "config/droppedTopics.json").write_bytes(drops)
    assert visible(tmp_path, some) == [2]


def test_damaged_offsets_are_not_looked_for(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(queue_offset=at) for at in (0, 2**60, -5, 1)])
    write_queues(tmp_path, [some[0], some[3]])
    assert visible(tmp_path, some) == [0, 3]


def test_damaged_offsets_in_queues_without_other_records_are_not_looked_for(tmp_path: Path) -> None:
    far = [(2, -(2**63)), (3, 2**63 - 1), (4, -1)]
    some = stored(tmp_path, *[record(queue_id=q, queue_offset=o) for q, o in [(1, 0), *far]])
    write_queues(tmp_path, some[:1])
    ends = [record(queue_id=q, position=10**6, size=91) for q, _ in far]  # all of theirs are older
    write_queues(tmp_path, ends)
    assert visible(tmp_path, some) == [0]


def test_batches_that_are_one_record_are_found_by_position(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(topic="B", queue_offset=at) for at in (0, 10, 20)])
    folder = tmp_path / "batchconsumequeue/B/0"
    folder.mkdir(parents=True)
    entries = b"".join(
        struct.pack(">qiqqqhii", each.position, each.size, 0, 0, each.queue_offset, 10, -1, 0)
        for each in (some[0], some[2])
    )
    (folder / f"{0:020d}").write_bytes(entries + bytes(46 * 5))
    assert visible(tmp_path, some) == [0, 2]


def test_decoding_in_chunks_gives_the_same_as_all_at_once(tmp_path: Path) -> None:
    """Entries are read ahead, and those of some queues are needed later or never again."""
    some = stored(
        tmp_path, *[record(queue_id=at % 3 * (at < 12), queue_offset=at // 3) for at in range(24)]
    )
    write_queues(tmp_path, [each for at, each in enumerate(some) if at % 5 and at < 18])
    layout = Layout(str(tmp_path))
    expected = visible(tmp_path, some)
    assert 0 < len(expected) < len(some)
    for size in range(1, 9):
        one = Visibility(layout, read_state(layout))
        found = []
        for at in range(0, len(some), size):
            mask = one.of(Chunk(*laid_out(some[at : at + size])).fields)
            found += [at + row for row, is_visible in enumerate(mask) if is_visible]
        assert found == expected


def test_many_queues_are_read_once_for_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = stored(
        tmp_path, *[record(queue_id=at % 50, queue_offset=at // 50) for at in range(1000)]
    )
    write_queues(tmp_path, some)
    layout = Layout(str(tmp_path))
    one = Visibility(layout, read_state(layout))
    reads = []
    entries = QueueFiles.entries

    def counted(self: QueueFiles, first: int, end: int) -> Entries:
        reads.append(first)
        return entries(self, first, end)

    monkeypatch.setattr(QueueFiles, "entries", counted)
    for at in range(0, len(some), 20):  # fewer than there are queues
        assert one.of(Chunk(*laid_out(some[at : at + 20])).fields).all()
    assert len(reads) == 50


def test_entries_added_after_a_queue_was_read_ahead_are_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, *[record(queue_offset=at) for at in range(4)])
    write_queues(tmp_path, some[:2])
    layout = Layout(str(tmp_path))
    one = Visibility(layout, read_state(layout))
    assert one.of(Chunk(*laid_out(some[:2])).fields).all()
    write_queues(tmp_path, some)
    assert one.of(Chunk(*laid_out(some[2:])).fields).all()


def test_a_record_with_a_wrong_queue_id_is_not_visible(tmp_path: Path) -> None:
    some = stored(tmp_path, record(), record(queue_id=-1))
    write_queues(tmp_path, some[:1])
    assert visible(tmp_path, some) == [0]
