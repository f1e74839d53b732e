from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.store.files import RealFiles
from rocketpost.store.queue.consume_queue import TAIL_BYTES_MAX, TAIL_BYTES_USUAL, ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER, QueueFiles

PER_FILE = 50


class Queues:
    def __init__(self, root: Path) -> None:
        self.directory = root / "TopicA" / "0"
        self.files = QueueFiles(RealFiles(), file_bytes=PER_FILE * ENTRY_BYTES)
        self.times: dict[int, int] = {}

    def make(self, start: int = 0) -> ConsumeQueue:
        return ConsumeQueue(
            "TopicA", 0, directory=str(self.directory), files=self.files,
            store_time=lambda position, pages: self.times.get(position, -1), start=start,
        )  # fmt: skip


@pytest.fixture
def queues(tmp_path: Path) -> Queues:
    return Queues(tmp_path)


def put(queue: ConsumeQueue, count: int, *, step: int = 100) -> None:
    for _ in range(count):
        queue.put(queue.end, queue.end * step, step, queue.end)
    queue.next_offset = queue.end


def codes(data: bytes) -> list[int]:
    return [code for _, _, code in ENTRY.iter_unpack(data)]


@pytest.mark.parametrize("start", [0, 7, PER_FILE - 1, 3 * PER_FILE])
def test_entries_are_read_back_from_files_and_memory(queues: Queues, start: int) -> None:
    queue = queues.make(start)
    put(queue, 333)
    for offset in (start, start + 40, start + 101, start + 102, start + 305, start + 332):
        assert codes(queue.read(offset, 400)) == list(range(offset, start + 333))
        assert codes(queue.read(offset, 3)) == list(range(offset, min(offset + 3, start + 333)))
    assert queue.read(start + 333, 1) == b""
    assert queue.read(start - 1, 1) == b""
    assert queue.entry(start + 5) == ((start + 5) * 100, 100, start + 5)
    assert queue.entry(start + 999) is None


def test_files_have_the_exact_size_and_fillers_in_front(queues: Queues) -> None:
    queue = queues.make(PER_FILE + 7)
    put(queue, 2 * PER_FILE)
    queue.save_blocking()
    names = sorted(path.name for path in queues.directory.iterdir())
    assert names == [f"{number * PER_FILE * ENTRY_BYTES:020d}" for number in (1, 2, 3)]
    for name in names:
        assert (queues.directory / name).stat().st_size == PER_FILE * ENTRY_BYTES
    data = (queues.directory / names[0]).read_bytes()
    assert data[: 7 * ENTRY_BYTES] == FILLER * 7
    assert codes(data[7 * ENTRY_BYTES :]) == list(range(PER_FILE + 7, 2 * PER_FILE))


def test_many_fillers_are_written_in_pieces(tmp_path: Path) -> None:
    files = QueueFiles(RealFiles(), file_bytes=10_000 * ENTRY_BYTES)
    files.write(str(tmp_path), 9_000, ENTRY.pack(1, 2, 3))
    data = (tmp_path / ("0" * 20)).read_bytes()
    assert data[: 9_001 * ENTRY_BYTES] == FILLER * 9_000 + ENTRY.pack(1, 2, 3)
    assert not any(data[9_001 * ENTRY_BYTES :])


def test_saving_writes_what_is_new_only_and_is_seen_by_no_reader(queues: Queues) -> None:
    queue = queues.make()
    assert queue.save_blocking() == []
    put(queue, 10)
    assert queue.unsaved_bytes == 200
    assert len(queue.save_blocking()) == 1
    assert queue.unsaved_bytes == 0
    assert queue.save_blocking() == []
    put(queue, 60)
    assert len(queue.save_blocking()) == 2
    assert codes(queue.read(0, 99)) == list(range(70))
    put(queue, 100)
    assert queue.unsaved_bytes < TAIL_BYTES_USUAL
    assert codes(queue.read(0, 999)) == list(range(170))


def test_a_queue_that_grows_by_many_entries_at_once_is_written_less_often(queues: Queues) -> None:
    queue = queues.make()

    def add(count: int) -> None:
        entries = [ENTRY.pack(offset * 100, 100, offset) for offset in range(count)]
        queue.tail.data += b"".join(entries)
        queue.end += count  # type: ignore[assignment]
        if len(queue.tail.data) >= queue.spill_at:
            queue.spill()

    sizes = set()
    for _ in range(50):
        add(190)
        sizes.add(queue.spill_at)
        assert len(queue.tail.data) < TAIL_BYTES_MAX
    assert max(sizes) == TAIL_BYTES_MAX
    for _ in range(2 * TAIL_BYTES_MAX // ENTRY_BYTES):
        add(1)
    assert queue.spill_at == TAIL_BYTES_USUAL


def test_a_deleted_queue_is_not_written(queues: Queues) -> None:
    queue = queues.make()
    put(queue, 10)
    queue.is_deleted = True
    assert queue.save_blocking() == []
    assert not queues.directory.exists()


def test_a_missing_file_reads_as_empty(queues: Queues) -> None:
    queue = queues.make()
    put(queue, 102)
    for path in queues.directory.iterdir():
        path.unlink()
    queues.files.close()
    assert queue.read(0, 5) == b""
    assert queue.store_time(0) == -1


def test_descriptors_are_few_however_many_files_are_read(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.store.queue.files.DESCRIPTOR_COUNT_MAX", 2)
    queue = queues.make()
    put(queue, 510)
    for offset in range(0, 500, 25):
        assert codes(queue.read(offset, 1)) == [offset]
    assert len(queues.files._readers) == 2
    assert len(queues.files._writers) == 2
    queues.files.close()


class TestTime:
    def queue(self, queues: Queues, times: list[int], start: int = 0) -> ConsumeQueue:
        queue = queues.make(start)
        for at, ms in enumerate(times):
            queues.times[at * 100] = ms
            queue.put(queue.end, at * 100, 100, 0)
        return queue

    @pytest.mark.parametrize(
        ("at_ms", "lower", "upper"),
        [(5, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (25, 4, 3), (30, 4, 4), (99, 5, 4)],
    )
    def test_search(self, queues: Queues, at_ms: int, lower: int, upper: int) -> None:
        queue = self.queue(queues, [10, 20, 20, 20, 30])
        assert queue.offset_at(at_ms) == lower
        assert queue.offset_at(at_ms, upper=True) == upper

    def test_an_empty_queue_answers_its_end(self, queues: Queues) -> None:
        assert queues.make().offset_at(5) == 0
        assert queues.make(9).offset_at(5, upper=True) == 9

    def test_records_that_are_gone_count_as_early(self, queues: Queues) -> None:
        queue = self.queue(queues, [-1, -1, 30])
        assert queue.offset_at(0) == 2

    def test_store_time(self, queues: Queues) -> None:
        queue = self.queue(queues, [10, 20], start=4)
        assert [queue.store_time(offset) for offset in range(3, 7)] == [-1, 10, 20, -1]


def test_the_first_offset_follows_the_start_of_the_log(queues: Queues) -> None:
    queue = queues.make()
    put(queue, 120)
    assert queue.raise_first(0) == []
    assert queue.first == 0
    assert queue.raise_first(3001) == []
    assert queue.first == 31
    queue.save_blocking()
    gone = queue.raise_first(10_500)
    assert queue.first == 105
    assert [Path(path).name for path in gone] == [
        f"{number * PER_FILE * ENTRY_BYTES:020d}" for number in (0, 1)
    ]
    queue.raise_first(10**9)
    assert queue.first == queue.end == 120


def test_leading_fillers_are_never_visible(queues: Queues) -> None:
    queue = queues.make(5)
    queue.put_recovered(5, 500, 10, 5)
    queue.fill_to(8)
    queue.put_recovered(8, 800, 10, 8)
    queue.save_blocking()
    again = queues.make()
    again.resume(0, 9, 800)
    assert again.raise_first(0) == []
    assert again.first == 5
    assert again.store_time(6) == -1


@pytest.mark.parametrize("count", [1, 3, 99, 101, 5000])
def test_lost_offsets_are_filled(queues: Queues, count: int) -> None:
    queue = queues.make()
    put(queue, 2)
    queue.fill_to(2 + count)
    assert queue.end == queue.next_offset == 2 + count
    queue.put_recovered(2 + count, 10**6, 100, 7)
    assert queue.entry(2 + count) == (10**6, 100, 7)
    assert queue.read(2, count) == FILLER * count
    assert queue.first_at(0) == 0
    assert queue.first_at(50) == 1
    assert queue.first_at(10**6) == 2 + count
    queue.cut_at(10**6)
    assert (queue.end, queue.last_position) == (2 + count, 100)
    queue.cut_at(100)
    assert (queue.end, queue.last_position) == (1, 0)


def test_messages_before_and_after_lost_ones_are_found_by_time(queues: Queues) -> None:
    queue = queues.make()
    for offset in range(3):
        queues.times[offset * 100] = 10 + offset
        queue.put(offset, offset * 100, 100, 0)
    queue.fill_to(50)
    for offset in range(50, 60):
        queues.times[offset * 100] = offset
        queue.put(offset, offset * 100, 100, 0)
    assert [queue.offset_at(ms) for ms in (9, 10, 11, 12, 50, 55, 99)] == [
        0, 0, 1, 2, 50, 55, 60,
    ]  # fmt: skip


@pytest.mark.parametrize("count", [10, 102, 150, 210])
@pytest.mark.parametrize("keep", [0, 1, 9, 10])
def test_entries_past_the_log_are_cut(queues: Queues, count: int, keep: int) -> None:
    queue = queues.make()
    put(queue, count)
    queue.save_blocking()
    queue.cut_at(keep * 100)
    assert (queue.first, queue.end, queue.next_offset) == (0, keep, keep)
    assert codes(queue.read(0, 999)) == list(range(keep))
    queue.put(keep, 10**9, 1, 77)
    queue.save_blocking()
    data = b"".join(path.read_bytes() for path in sorted(queues.directory.iterdir()))
    assert codes(data)[: keep + 1] == [*range(keep), 77]
    assert not any(data[(keep + 1) * ENTRY_BYTES :])
