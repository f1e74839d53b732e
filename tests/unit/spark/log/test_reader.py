"""A store directory as a table: what is read, what is skipped, and stores of Apache's broker."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, InputPartition, LessThan

from rocketpost.errors import CorruptRecord
from rocketpost.model.sysflag import INNER_BATCH, NEED_UNWRAP
from rocketpost.spark.log import files as log_files
from rocketpost.spark.log.files import SMALLEST, OpenFile
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.plan import LogTask
from rocketpost.spark.log.reader import FilteringLogReader, LogReader
from rocketpost.spark.options import parse_options
from rocketpost.spark.records import columns

from ..made_records import record
from ..stores import write_checkpoint, write_index, write_log, write_queues

SEGMENT = 4096
GOLDEN = Path(__file__).parents[3] / "golden" / "__init__.py"


def reader(root: Path, **options: str) -> LogReader:
    return LogReader(parse_options(LogOptions, {"path": str(root), **options}), columns.ALL)


def rows(root: Path, **options: str) -> list[dict[str, Any]]:
    found = reader(root, **options)
    return [
        row
        for part in found.partitions()
        for batch in found.read(part)
        for row in batch.to_pylist()
    ]


def segments(root: Path, **options: str) -> set[int]:
    parts = reader(root, **options).partitions()
    return _segments(parts)


def _segments(parts: Iterable[object]) -> set[int]:
    return {
        split.segment.start for part in parts if isinstance(part, LogTask) for split in part.splits
    }


class Counter:
    """Counts the bytes that are read of segments and of the index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        self.segments: set[str] = set()
        true, made = OpenFile.read, OpenFile.__init__
        paths: dict[int, str] = {}

        def opened(file: OpenFile, path: str) -> None:
            paths[id(file)] = path
            made(file, path)

        def counted(file: OpenFile, at: int, count: int) -> bytes:
            data = true(file, at, count)
            self.read += len(data)
            if count > SMALLEST and "/commitlog/" in paths[id(file)]:
                self.segments.add(paths[id(file)])
            return data

        monkeypatch.setattr(OpenFile, "__init__", opened)
        monkeypatch.setattr(OpenFile, "read", counted)

    def of_tasks(self, found: LogReader) -> int:
        """Return what the tasks of a reader read."""
        parts = found.partitions()
        self.read, self.segments = 0, set()
        for part in parts:
            for _ in found.read(part):
                pass
        return self.read


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def bodies(root: Path, **options: str) -> list[bytes]:
    return [row["body"] for row in rows(root, **options)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return two topics, one after the other, over many segments; the third is deleted."""
    some = [
        record(
            topic=topic,
            queue_offset=at,
            store_ms=1000 * block + at,
            body=b"%b%03d" % (topic.encode(), at) + b"." * 200,
            properties_bytes=b"TAGS\x01%b\x02" % (b"odd" if at % 2 else b"even"),
        )
        for block, topic in enumerate(("A", "Gone", "B"))
        for at in range(40)
    ]
    stored = write_log(tmp_path, some, segment_bytes=SEGMENT)
    write_queues(tmp_path, [each for each in stored if each.topic != "Gone"])
    write_checkpoint(tmp_path, stored[-1].position + stored[-1].size)
    return tmp_path


def test_a_consumers_view_lacks_deleted_topics(store: Path) -> None:
    assert {body[:1] for body in bodies(store)} == {b"A", b"B"}
    assert len(bodies(store, view="log")) == 120


def test_segments_without_a_topic_are_skipped(store: Path) -> None:
    found = bodies(store, topic="A")
    assert [body[:4] for body in found] == [b"A%03d" % at for at in range(40)]
    assert len(segments(store, topic="A")) <= len(segments(store)) / 2


def test_segments_of_other_times_are_skipped(store: Path) -> None:
    times = {"startingTimestamp": "2005", "endingTimestamp": "2010", "maxClockStepMs": "0"}
    assert [body[:4] for body in bodies(store, **times)] == [b"B%03d" % at for at in range(5, 10)]
    assert len(segments(store, **times)) <= 2


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    some = [
        record(
            queue_offset=at, store_ms=1000 * at - (5000 if 20 <= at < 40 else 0), body=b"." * 900
        )
        for at in range(60)
    ]
    write_queues(tmp_path, write_log(tmp_path, some, segment_bytes=SEGMENT))
    wanted = [each.queue_offset for each in some if 18_000 <= each.store_ms < 22_000]
    times = {"startingTimestamp": "18000", "endingTimestamp": "22000", "maxClockStepMs": "6000"}
    assert [row["queueOffset"] for row in rows(tmp_path, **times)] == wanted
    assert len(segments(tmp_path, **times)) < len(segments(tmp_path)) / 2


def test_nothing_is_read_if_nothing_matches(store: Path) -> None:
    found = reader(store, endingTimestamp="-1", maxClockStepMs="0")
    assert list(found.partitions()) == []
    assert list(found.read(InputPartition(None))) == []  # which Spark makes then


def test_tags_are_compared(store: Path) -> None:
    assert len(bodies(store, topic="B", tags="odd")) == 20
    assert len(bodies(store, topic="B", tags="odd || even")) == 40


def damage(store: Path, at: int) -> None:
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_bodies_can_be_checked(store: Path) -> None:
    damage(store, 100)
    assert len(bodies(store)) == 80
    with pytest.raises(CorruptRecord, match="position 0 fails its CRC"):
        bodies(store, checkCrc="true")
    assert len(bodies(store, checkCrc="true", onCorrupt="skip")) == 79
    assert bodies(store, checkCrc="true", onCorrupt="stop") == []


def test_a_topic_that_is_not_text_is_damage(store: Path) -> None:
    first = rows(store, view="log")[0]
    damage(store, first["storeSize"] - len("TAGS.even.") - 3)
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[first["storeSize"] - len("TAGS.even.") - 3] = 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptRecord, match="topic of the record at position 0 is not text"):
        bodies(store)
    assert len(bodies(store, onCorrupt="skip")) == 79
    assert bodies(store, onCorrupt="stop") == []
    assert len(bodies(store, view="log")) == 120


def test_a_body_that_cannot_be_decompressed_is_damage(tmp_path: Path) -> None:
    some = [record(queue_offset=at, body=b"no zlib", sys_flag=at % 2) for at in range(6)]
    write_queues(tmp_path, write_log(tmp_path, some, segment_bytes=SEGMENT))
    with pytest.raises(CorruptRecord, match="cannot be read"):
        bodies(tmp_path)
    assert len(bodies(tmp_path, onCorrupt="skip")) == 3
    assert len(bodies(tmp_path, readDecoded="false")) == 6


# -- many topics, queues, tags and keys: whatever way is taken, the rows are the same


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a store of 1200 messages; 1 in 40 is of the topic Small, and 1 in 30 tagged rare."""
    some = []
    ends: dict[tuple[str, int], int] = {}
    for at in range(1200):
        topic, queue_id = ("Small" if at % 40 == 0 else "Big"), at % 3
        offset = ends.get((topic, queue_id), 0)
        ends[topic, queue_id] = offset + 1
        tag = "rare" if at % 30 == 0 else "common"
        text = f"UNIQ_KEY\x01U{at:04d}\x02KEYS\x01k{at % 100} n{at}\x02TAGS\x01{tag}\x02"
        some.append(
            record(
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                store_ms=10_000 + at,
                body=b"%04d" % at + b"." * 1500,
                properties_bytes=text.encode(),
            )
        )
    stored = write_log(tmp_path, some, segment_bytes=1 << 17)
    write_queues(tmp_path, stored)
    write_index(tmp_path, stored[:500], name="20231114221320123")
    write_index(tmp_path, stored[500:], name="20231114221320124")
    write_checkpoint(tmp_path, stored[-1].position + stored[-1].size)
    return tmp_path


CASES: list[tuple[dict[str, str], Callable[[int], bool]]] = [
    ({}, lambda at: True),
    ({"topic": "Small"}, lambda at: at % 40 == 0),
    ({"topic": "Small,Big"}, lambda at: True),
    ({"topic": "None"}, lambda at: False),
    ({"topic": "Big", "tags": "rare"}, lambda at: at % 40 != 0 and at % 30 == 0),
    ({"tags": "rare || other"}, lambda at: at % 30 == 0),
    ({"keys": "k7"}, lambda at: at % 100 == 7),
    ({"keys": "n40 n41 n9999"}, lambda at: at in (40, 41)),
    ({"keys": "k80", "topic": "Small"}, lambda at: at % 200 == 80),
    ({"keys": "U0007"}, lambda at: False),
    ({"uniqKey": "U0007 U0800"}, lambda at: at in (7, 800)),
    (
        {"startingTimestamp": "10100", "endingTimestamp": "10200", "maxClockStepMs": "0"},
        lambda at: 100 <= at < 200,
    ),
    ({"startingTimestamp": "10100", "endingTimestamp": "10200"}, lambda at: 100 <= at < 200),
    (
        {"startingTimestamp": "11000", "topic": "Small"},
        lambda at: at % 40 == 0 and at >= 1000,
    ),
    ({"keys": "k7", "endingTimestamp": "10500"}, lambda at: at % 100 == 7 and at < 500),
]


@pytest.mark.parametrize(("options", "wanted"), CASES)
@pytest.mark.parametrize("on_corrupt", ["fail", "stop"])
def test_every_way_gives_the_rows_that_are_asked_for(
    mixed: Path, options: dict[str, str], wanted: Callable[[int], bool], on_corrupt: str
) -> None:
    expected = [at for at in range(1200) if wanted(at)]
    found = bodies(mixed, **options, onCorrupt=on_corrupt)
    assert sorted(int(body[:4]) for body in found) == expected
    seen = bodies(mixed, **options, view="log", onCorrupt=on_corrupt)
    assert sorted(int(body[:4]) for body in seen) == expected


def test_a_topic_that_is_a_small_part_costs_little(mixed: Path, counter: Counter) -> None:
    whole = counter.of_tasks(reader(mixed))
    assert counter.of_tasks(reader(mixed, topic="Small")) < whole / 20
    assert counter.of_tasks(reader(mixed, tags="rare")) < whole / 20


def test_a_key_costs_the_messages_that_have_it(mixed: Path, counter: Counter) -> None:
    assert len(bodies(mixed, uniqKey="U0300")) == 1
    assert counter.of_tasks(reader(mixed, uniqKey="U0300")) < 4000
    assert counter.of_tasks(reader(mixed, keys="k7")) < 12 * 2000
    counter.of_tasks(reader(mixed, keys="n300 n301"))
    assert len(counter.segments) == 1


def test_rows_of_a_queue_come_in_order_within_a_task(mixed: Path) -> None:
    offsets: dict[int, list[int]] = {}
    for row in rows(mixed, topic="Small"):
        offsets.setdefault(row["queueId"], []).append(row["queueOffset"])
    assert offsets == {queue: list(range(10)) for queue in range(3)}


def test_records_missing_in_the_index_are_scanned(mixed: Path) -> None:
    newest = mixed / "index" / "20231114221320124"
    newest.unlink()
    expected = [at for at in range(1200) if at % 100 == 7]
    assert sorted(int(body[:4]) for body in bodies(mixed, keys="k7")) == expected
    (mixed / "index" / "20231114221320123").unlink()
    assert sorted(int(body[:4]) for body in bodies(mixed, keys="k7")) == expected
    (mixed / "index").rmdir()
    assert sorted(int(body[:4]) for body in bodies(mixed, keys="k7")) == expected


def cut_queue(root: Path, topic: str, queue_id: int, kept: int) -> None:
    path = root / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[: kept * 20].ljust(len(data), b"\0"))


def test_records_missing_in_queues_are_scanned(mixed: Path) -> None:
    """Queues of a running broker are behind, each by another number of messages."""
    every = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows(mixed)}
    for queue_id, kept in enumerate((9, 7, 6)):
        cut_queue(mixed, "Small", queue_id, kept)
    lacking = [row for (t, q, o), row in every.items() if t == "Small" and o >= (9, 7, 6)[q]]
    write_checkpoint(mixed, min(row["commitLogOffset"] for row in lacking))
    found = bodies(mixed, topic="Small")
    assert sorted(int(body[:4]) for body in found) == list(range(0, 1200, 40))
    assert any(part.ranges for part in reader(mixed, topic="Small").partitions())


def test_queues_of_a_copy_may_be_less_complete_than_expected(mixed: Path) -> None:
    """Whatever was copied when: of every queue the first messages are there, without a hole."""
    every = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows(mixed)}
    for end in (0, 5, 8, 9):
        write_checkpoint(mixed, every["Small", 1, end]["commitLogOffset"])
        cut_queue(mixed, "Small", 1, 4)
        offsets = [r["queueOffset"] for r in rows(mixed, topic="Small") if r["queueId"] == 1]
        assert sorted(offsets) == list(range(10)), end


def test_filters_of_a_query_reduce_reading(mixed: Path, counter: Counter) -> None:
    whole = counter.of_tasks(reader(mixed))

    def filtered(*filters: Filter) -> list[int]:
        options = parse_options(LogOptions, {"path": str(mixed), "filterPushdown": "once"})
        found = FilteringLogReader(options, columns.ALL)
        assert list(found.pushFilters(list(filters))) == list(filters)
        counter.of_tasks(found)
        read.append(counter.read)
        return sorted(
            int(row["body"][:4])
            for part in found.partitions()
            for batch in found.read(part)
            for row in batch.to_pylist()
        )

    read: list[int] = []
    when = datetime.fromtimestamp(10.1, UTC)
    assert filtered(EqualTo(("topic",), "Small")) == list(range(0, 1200, 40))
    assert read[-1] < whole / 10
    assert filtered(EqualTo(("uniqKey",), "U0300")) == [300]
    assert read[-1] < whole / 10
    assert filtered(EqualTo(("keys",), "k7 n107")) == [107]
    assert filtered(LessThan(("storeTimestamp",), when)) == list(range(100))
    assert filtered(EqualTo(("queueId",), 1), LessThan(("queueOffset",), 3)) == [
        1, 4, 7, 40, 160, 280,
    ]  # fmt: skip
    assert filtered(EqualTo(("brokerName",), "b")) == []
    assert filtered(EqualTo(("topic",), "Small"), EqualTo(("topic",), "Big")) == []


# -- damage


@pytest.mark.parametrize(
    "seed", [*range(24), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(24, 60))]
)
def test_flipped_bytes_give_rows_or_an_error_with_the_position(store: Path, seed: int) -> None:
    chance = random.Random(seed)
    everything = {row["commitLogOffset"]: row for row in rows(store, view="log")}
    for path in sorted((store / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
    for view in ("consumer", "log"):
        for options in ({}, {"topic": "B"}, {"tags": "odd"}):
            for on_corrupt in ("fail", "stop", "skip"):
                found = []
                may = contextlib.suppress(CorruptRecord)  # the message is checked elsewhere
                with may if on_corrupt == "fail" else contextlib.nullcontext():
                    found = rows(store, view=view, onCorrupt=on_corrupt, **options)
                assert {row["commitLogOffset"] for row in found} <= set(everything)
            checked = rows(store, view=view, onCorrupt="skip", checkCrc="true", **options)
            for row in checked:
                assert zlib.crc32(row["body"]) & 0x7FFF_FFFF == row["bodyCrc"]


def test_segments_that_expire_while_they_are_read_are_left_out(mixed: Path) -> None:
    for options in ({}, {"topic": "Small"}, {"keys": "k7"}):
        found = reader(mixed, **options)
        parts = found.partitions()
        first = mixed / "commitlog" / ("0" * 20)
        data = first.read_bytes()
        first.unlink()
        left = [row for part in parts for batch in found.read(part) for row in batch.to_pylist()]
        assert left
        assert min(row["commitLogOffset"] for row in left) >= 1 << 17
        first.write_bytes(data)


def test_a_log_without_its_oldest_segments(mixed: Path) -> None:
    (mixed / "commitlog" / ("0" * 20)).unlink()
    for options in ({}, {"topic": "Small"}, {"keys": "k7"}, {"tags": "rare"}):
        found = rows(mixed, **options)
        assert found
        assert min(row["commitLogOffset"] for row in found) >= 1 << 17


@pytest.mark.parametrize("options", [{}, {"topic": "Small"}, {"keys": "k7"}, {"tags": "rare"}])
def test_a_segment_that_is_missing_in_the_middle_is_damage(
    mixed: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    start, end = 1 << 17, 2 << 17
    missing = mixed / "commitlog" / f"{start:020d}"
    before = [row for row in rows(mixed, **options) if row["commitLogOffset"] < start]
    after = [row for row in rows(mixed, **options) if row["commitLogOffset"] >= end]
    assert before
    assert after
    missing.unlink()
    with pytest.raises(CorruptRecord, match=f"{missing} is missing.* {start} to {end}") as raised:
        reader(mixed, **options).partitions()  # on the driver
    assert "onCorrupt=skip" in str(raised.value)

    def places(onCorrupt: str) -> list[int]:  # noqa: N803 - the option's name
        found = rows(mixed, onCorrupt=onCorrupt, **options)
        return sorted(row["commitLogOffset"] for row in found)

    assert places("stop") == sorted(row["commitLogOffset"] for row in before)
    caplog.clear()
    assert places("skip") == sorted(row["commitLogOffset"] for row in before + after)
    assert str(missing) in caplog.text


def test_a_missing_segment_of_another_time_does_not_matter(mixed: Path) -> None:
    first = max(row["storeTimestamp"] for row in rows(mixed) if row["commitLogOffset"] < 2 << 17)
    ms = int(first.timestamp() * 1000) + 2  # none of the missing ones is as young
    times = {"startingTimestamp": str(ms), "maxClockStepMs": "0"}
    whole = bodies(mixed, **times)
    assert whole
    (mixed / "commitlog" / f"{0:020d}").rename(mixed / "first")
    (mixed / "commitlog" / f"{1 << 17:020d}").unlink()
    (mixed / "first").rename(mixed / "commitlog" / f"{0:020d}")
    assert bodies(mixed, **times) == whole


@pytest.mark.parametrize("options", [{}, {"topic": "Small"}, {"keys": "k7"}])
def test_a_segment_that_vanishes_behind_others_is_damage(
    mixed: Path, options: dict[str, str]
) -> None:
    found = reader(mixed, **options)
    parts = found.partitions()
    (mixed / "commitlog" / f"{1 << 17:020d}").unlink()  # none expires before older ones
    with pytest.raises(CorruptRecord, match=f"{1 << 17:020d} is missing"):
        [list(found.read(part)) for part in parts]


def test_several_stores_are_read_together(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    some = write_log(other, [record(topic="A", body=b"other")], segment_bytes=SEGMENT)
    write_queues(other, some)
    found = [row["body"] for row in rows(Path(f"{store},{other}"), topic="A")]
    assert len(found) == 41
    assert b"other" in found


@pytest.fixture
def batched(tmp_path: Path) -> Path:
    """Return a store with two batches of two messages, each batch one record, and a plain one."""
    items = b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 7, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
        for body, text in ((b"one", b"TAGS\x01A\x02"), (b"two", b"TAGS\x01B\x02"))
    )
    flags = INNER_BATCH | NEED_UNWRAP
    text = b"INNER_NUM\x012\x02"
    some = [
        record(topic="T", queue_offset=at, body=items, sys_flag=flags, properties_bytes=text)
        for at in (0, 2)
    ]
    some.append(record(topic="T", queue_offset=4, body=b"alone"))
    *stored, last = write_log(tmp_path, [*some, record(topic="A")], segment_bytes=SEGMENT)
    write_queues(tmp_path, [last])  # else damage would be the end of the log
    folder = tmp_path / "batchconsumequeue/T/0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(
        b"".join(
            struct.pack(">qiqqqhii", each.position, each.size, 0, 0, each.queue_offset, 2, -1, 0)
            for each in stored
        )
    )
    return tmp_path


def test_batches_that_are_one_record_are_split(batched: Path) -> None:
    every = rows(batched, topic="T")
    found = [(row["queueOffset"], row["body"], row["flag"]) for row in every]
    assert found[:4] == [(0, b"one", 7), (1, b"two", 7), (2, b"one", 7), (3, b"two", 7)]
    assert [body for _, body, _ in found[4:]] == [b"alone"]
    assert len(rows(batched, tags="B")) == 2
    first, second, *_ = rows(batched, view="log")
    assert first["body"] == second["body"]


def test_trap_bodies_of_batches_can_be_checked_before_they_are_split(batched: Path) -> None:
    # Its messages are encoded anew, with a CRC that is always right.
    whole = rows(batched, view="log")
    for at, in_body in ((2, 0), (0, 20)):  # a message beside batches, and a batch
        position = whole[at]["commitLogOffset"]
        damage(batched, position + 88 + in_body)
        with pytest.raises(CorruptRecord, match=f"position {position} fails its CRC"):
            bodies(batched, checkCrc="true", topic="T")
        if at:
            damage(batched, position + 88 + in_body)  # back again
    found = rows(batched, checkCrc="true", onCorrupt="skip", topic="T")
    assert [row["queueOffset"] for row in found] == [2, 3, 4]
    assert bodies(batched, checkCrc="true", onCorrupt="stop") == []
    assert len(bodies(batched, topic="T")) == 5


def test_a_batch_that_cannot_be_split_is_damage(batched: Path) -> None:
    damage(batched, 88 + 3)  # the size of its first message
    with pytest.raises(CorruptRecord, match="record at position 0 cannot be read: "):
        bodies(batched)
    assert [row["queueOffset"] for row in rows(batched, onCorrupt="skip", topic="T")] == [2, 3, 4]


def test_memory_is_bounded_however_long_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 32 * 1024)
    peaks = []
    for count in (200, 200, 1000):  # the first time, more than records is loaded
        root = tmp_path / str(len(peaks))
        some = [record(body=bytes(900), queue_offset=at) for at in range(count)]
        write_log(root, some, segment_bytes=256 * 1024)
        found = reader(root, view="log")
        tracemalloc.start()
        batches = (batch for part in found.partitions() for batch in found.read(part))
        assert sum(batch.num_rows for batch in batches) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 32 * 1024 < peaks[2] < peaks[1] + 64 * 1024


@pytest.mark.parametrize("name", ["store-clean", "store-killed"])
def test_a_store_of_apaches_broker_has_what_its_clients_got(tmp_path: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    pulled = module.restore_store(name, tmp_path)["messages"]
    found = {(row["queueId"], row["queueOffset"]): row for row in rows(tmp_path, topic="Orders")}
    assert len(found) == len(pulled)
    for message in pulled:
        row = found[message["queueId"], message["queueOffset"]]
        assert row["commitLogOffset"] == message["commitLogOffset"]
        assert row["storeSize"] == message["storeSize"]
        assert row["uniqKey"] == message["msgId"]
        assert (row["tags"], row["keys"]) == (message.get("tags"), message.get("keys"))
        assert len(row["body"]) == message["bodySize"]
        assert zlib.crc32(row["body"]) == message["bodyCrc"]


@pytest.mark.parametrize("is_whole", [False, True])
def test_damage_where_a_segment_begins_hides_nothing_from_a_query_by_time(
    store: Path, is_whole: bool
) -> None:
    for path in sorted((store / "commitlog").iterdir())[1:-1]:
        data = path.read_bytes()
        lost = len(data) - 100 if is_whole else 50
        path.write_bytes(b"?" * lost + data[lost:])
        every = bodies(store, onCorrupt="skip")
        assert every[-1].startswith(b"B039")
        for times in ({"endingTimestamp": "2100"}, {"startingTimestamp": "0"}):
            assert bodies(store, onCorrupt="skip", maxClockStepMs="0", **times) == every
        with pytest.raises(CorruptRecord, match="no record at position"):
            bodies(store, endingTimestamp="2100")
        path.write_bytes(data)


@pytest.mark.parametrize("key", ["a\tb", "a\u00a0b", "a  b", " a"])
def test_keys_are_split_as_brokers_split_them(tmp_path: Path, key: str) -> None:
    some = [
        record(
            topic="A",
            queue_offset=at,
            store_ms=1000 + at,
            properties_bytes=f"KEYS\x01{key if at == 7 else at}\x02".encode(),
        )
        for at in range(9)
    ]
    stored = write_log(tmp_path, some, segment_bytes=SEGMENT)
    write_queues(tmp_path, stored)
    write_index(tmp_path, stored)
    write_checkpoint(tmp_path, stored[-1].position + stored[-1].size)
    assert [row["queueOffset"] for row in rows(tmp_path, keys=key)] == [7]
    options = parse_options(LogOptions, {"path": str(tmp_path), "filterPushdown": "once"})
    found = FilteringLogReader(options, columns.ALL)
    found.pushFilters([EqualTo(("keys",), key)])
    [batch] = [batch for part in found.partitions() for batch in found.read(part)]
    assert batch.column("queueOffset").to_pylist() == [7]


@pytest.mark.parametrize("options", [{}, {"topic": "Lost"}, {"topic": "Lost,T"}])
def test_a_topic_whose_queue_directory_is_missing_is_an_error(
    tmp_path: Path, options: dict[str, str]
) -> None:
    some = [record(topic=topic, queue_offset=at) for at in range(40) for topic in ("Lost", "T")]
    stored = write_log(tmp_path, some, segment_bytes=SEGMENT)
    write_queues(tmp_path, [each for each in stored if each.topic == "T"])
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(
        '{"dataVersion":{},"topicConfigTable":{"Lost":{"topicName":"Lost"},"T":{"topicName":"T"}}}'
    )
    with pytest.raises(CorruptRecord, match="consumequeue/Lost/0 is missing"):
        rows(tmp_path, **options)
    found = rows(tmp_path, onCorrupt="skip", **options)
    assert {row["topic"] for row in found} <= {"T"}
    assert len(rows(tmp_path, view="log")) == len(some)
    assert len(rows(tmp_path, topic="T")) == 40
