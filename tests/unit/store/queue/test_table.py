from __future__ import annotations

import random
from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, QueueFiles
from rocketpost.store.queue.table import QueueTable

PER_FILE = 3000


def table(root: Path, per_file: int = PER_FILE) -> QueueTable:
    layout = Layout(str(root))
    files = QueueFiles(RealFiles(), file_bytes=per_file * ENTRY_BYTES)
    deleted_topics = DeletedTopics(RealFiles(), layout.deleted_topics)
    return QueueTable(layout, files, deleted_topics, store_time=lambda position, pages: -1)


def write(root: Path, count: int, *, topic: str = "TopicA") -> QueueTable:
    made = table(root)
    queue = made.make(topic, 0)
    for offset in range(count):
        queue.put(offset, offset * 10, 10, 0)
    queue.save_blocking()
    return made


@pytest.mark.parametrize("count", [1, 199, 200, 201, 202, 399, 401, 2500, 2999, 3000, 3001, 7000])
def test_the_end_is_found_wherever_it_is(tmp_path: Path, count: int) -> None:
    write(tmp_path, count)
    for trusted in {1, count // 3 or 1, count - 1 or 1, count}:
        found = table(tmp_path)
        found.load_blocking(before=trusted * 10, clean=True)
        queue = found.get(("TopicA", 0))
        assert queue is not None
        assert (queue.end, queue.last_position) == (trusted, (trusted - 1) * 10)
    found = table(tmp_path)
    found.load_blocking(before=None, clean=True)
    queue = found.get(("TopicA", 0))
    assert queue is not None
    assert (queue.first, queue.end) == (0, count)


@pytest.mark.parametrize("trusted", range(1, 60, 7))
def test_entries_that_are_not_trusted_are_erased(tmp_path: Path, trusted: int) -> None:
    write(tmp_path, 60)
    table(tmp_path).load_blocking(before=trusted * 10, clean=False)
    data = (tmp_path / "consumequeue" / "TopicA" / "0" / ("0" * 20)).read_bytes()
    assert len(data) == PER_FILE * ENTRY_BYTES
    assert not any(data[trusted * ENTRY_BYTES :])
    assert ENTRY.unpack_from(data, (trusted - 1) * ENTRY_BYTES)[0] == (trusted - 1) * 10


def test_holes_left_by_a_crash_do_not_mislead_a_later_search(tmp_path: Path) -> None:
    write(tmp_path, 500)
    path = tmp_path / "consumequeue" / "TopicA" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[100 * ENTRY_BYTES : 300 * ENTRY_BYTES] = bytes(200 * ENTRY_BYTES)
    path.write_bytes(data)
    found = table(tmp_path)
    found.load_blocking(before=1000, clean=False)
    queue = found.get(("TopicA", 0))
    assert queue is not None
    assert queue.end == 100
    assert not any(path.read_bytes()[100 * ENTRY_BYTES :])


def test_a_queue_that_is_newer_than_the_checkpoint_is_left_to_replay(tmp_path: Path) -> None:
    write(tmp_path, 10)
    found = table(tmp_path)
    found.load_blocking(before=0, clean=False)
    assert len(found) == 0
    assert list((tmp_path / "consumequeue" / "TopicA" / "0").iterdir()) == []


def test_counts_reveal_lost_queues(tmp_path: Path) -> None:
    made = table(tmp_path)
    assert made.count() == (0, 0)
    queue = made.make("TopicA", 0)
    assert made.count_added(0) == (0, 0)
    queue.put(0, 0, 10, 0)
    assert made.count_added(1) == (1, 1)
    queue.put(1, 10, 10, 0)
    assert made.count_added(1) == (1, 2) == made.count()
    made._deleted_topics.add("TopicB", 0, {3: 40}, serial=1)
    other = made.make("TopicB", 3)
    assert other.next_offset == 40
    other.put(40, 20, 10, 0)
    assert made.count_added(1) == (2, 43) == made.count()


def test_counts_stay_right_when_topics_are_deleted(tmp_path: Path) -> None:
    made = table(tmp_path)
    for topic in ("A", "B"):
        for queue_id in (2, 0, 1):
            queue = made.make(topic, queue_id)
            for offset in range(queue_id):
                queue.put(offset, offset * 10, 10, 0)
    assert made.count_added(6) == (4, 6)
    assert [queue.queue_id for queue in made.of_topic("A")] == [0, 1, 2]
    made.delete("A", 100)
    assert made.count_added(0) == (2, 3)
    assert made.count() == (2, 3)
    assert made.of_topic("A") == []
    made.delete("nobody", 100)
    assert made.count_added(0) == (2, 3) == made.count()
    again = made.make("A", 2)
    again.put(again.next_offset, 200, 10, 0)
    assert made.count_added(1) == (3, 3 + again.end) == made.count()


@pytest.mark.parametrize(("log_first", "first"), [(0, None), (PER_FILE * 20 + 10, 2 * PER_FILE)])
def test_a_missing_file_in_the_middle(tmp_path: Path, log_first: int, first: int | None) -> None:
    """Before it everything has expired, or the queue is built again."""
    write(tmp_path, 4 * PER_FILE)
    directory = tmp_path / "consumequeue" / "TopicA" / "0"
    (directory / f"{PER_FILE * ENTRY_BYTES:020d}").unlink()
    found = table(tmp_path)
    found.load_blocking(before=10**9, clean=True, log_first=log_first)
    queue = found.get(("TopicA", 0))
    if first is None:
        assert queue is None
        assert list(directory.iterdir()) == []
    else:
        assert queue is not None
        assert (queue.first, queue.end) == (first, 4 * PER_FILE)
        assert len(list(directory.iterdir())) == 2


def test_short_files_are_damage_or_other_settings(tmp_path: Path) -> None:
    write(tmp_path, PER_FILE + 5)
    path = tmp_path / "consumequeue" / "TopicA" / "0" / f"{PER_FILE * ENTRY_BYTES:020d}"
    with path.open("r+b") as file:
        file.truncate(3 * ENTRY_BYTES)
    found = table(tmp_path)
    found.load_blocking(before=10**9, clean=True)
    queue = found.get(("TopicA", 0))
    assert queue is not None
    assert queue.end == PER_FILE + 3
    assert path.stat().st_size == PER_FILE * ENTRY_BYTES
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue"):
        table(tmp_path, 4000).load_blocking(before=10**9, clean=False)
    path.unlink()
    with pytest.raises(StoreError, match="remove the file"):
        table(tmp_path, 4000).load_blocking(before=10**9, clean=True)


@pytest.mark.parametrize("damage", ["zeroed", "random", "old"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_queue_of_a_damaged_file_is_rebuilt(tmp_path: Path, number: int, damage: str) -> None:
    write(tmp_path, 3 * PER_FILE)
    path = tmp_path / "consumequeue" / "TopicA" / "0" / f"{number * PER_FILE * ENTRY_BYTES:020d}"
    size = PER_FILE * ENTRY_BYTES
    data = {
        "zeroed": bytes(size),
        "random": random.Random(number).randbytes(size),
        "old": path.read_bytes()[: size // 2].ljust(size, b"\0"),
    }[damage]
    path.write_bytes(data)
    found = table(tmp_path)
    found.load_blocking(before=10**9, clean=True, limit=10**9)
    if number < 2:
        assert found.get(("TopicA", 0)) is None
        assert found.is_incomplete
    else:  # the count of entries tells
        assert found.count() != (1, 3 * PER_FILE)


def test_the_first_file_that_is_missing_shows_in_a_sum(tmp_path: Path) -> None:
    made = write(tmp_path, 2 * PER_FILE)
    start_sum = made.start_sum()
    (tmp_path / "consumequeue" / "TopicA" / "0" / ("0" * 20)).unlink()
    found = table(tmp_path)
    found.load_blocking(before=10**9, clean=True)
    assert found.count() == made.count()
    assert found.start_sum() > start_sum
    found.check_all_blocking(limit=10**9, start_sum=start_sum)
    assert len(found) == 0
    assert found.is_incomplete
    found.fill_to_known_ends()
    queue = found.get(("TopicA", 0))
    assert queue is not None
    assert queue.next_offset == 2 * PER_FILE  # nobody gets an offset again


def test_foreign_files_in_the_directory_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, 5)
    (tmp_path / "consumequeue" / "TopicA" / "notes").mkdir()
    (tmp_path / "consumequeue" / "TopicA" / "0" / "notes.txt").touch()
    (tmp_path / "consumequeue" / "TopicA" / "1").mkdir()
    (tmp_path / "consumequeue" / "TopicA" / "1" / ("0" * 20)).touch()
    found = table(tmp_path)
    found.load_blocking(before=10**9, clean=True)
    assert [queue.queue_id for queue in found.of_topic("TopicA")] == [0]
    assert found.of_topic("TopicB") == []
