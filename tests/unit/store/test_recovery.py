from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.message_store import MessageStore

from .conftest import Opener, draft
from .test_message_store import bodies


def fill(store: MessageStore, count: int, *, seed: int = 1) -> dict[tuple[str, int], list[bytes]]:
    """Append messages of all sizes to several queues; returns what each must hold."""
    chance = random.Random(seed)
    wanted: dict[tuple[str, int], list[bytes]] = {}
    for number in range(count):
        topic, queue_id = chance.choice(["TopicA", "TopicB"]), chance.randrange(3)
        body = b"%d:" % number + bytes(chance.randrange(700))
        properties = b"KEYS\x01key%d\x02TAGS\x01t\x02" % number
        store.append(
            draft(
                body, topic=topic, queue_id=queue_id, properties=properties,
                keys=(f"key{number}",), tags_code=116,
            )
        )  # fmt: skip
        wanted.setdefault((topic, queue_id), []).append(body)
        if number % 7 == 0:
            store.commit()
    store.commit()
    return wanted


def check(store: MessageStore, wanted: dict[tuple[str, int], list[bytes]]) -> None:
    for (topic, queue_id), expected in wanted.items():
        assert bodies(store, topic, queue_id) == expected
        queue = store.queue(topic, queue_id)
        assert queue is not None
        assert queue.next_offset == queue.end == len(expected)
        entries = [queue.entry(offset) for offset in range(queue.end)]
        assert all(entry is not None and entry[2] == 116 for entry in entries)
    for topic, queue_id in wanted:
        for body in wanted[topic, queue_id][::10]:
            key = "key" + body.split(b":")[0].decode()
            (position,) = store.find(topic, key, count_max=9, begin_ms=0, end_ms=2**62)
            record = store.record_at(position)
            assert record is not None
            assert bytes(record.body) == body


def test_a_clean_stop_leaves_nothing_to_replay(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 200)
    end = store.end_position
    store.close_blocking()
    assert not (opener.root / "abort").exists()
    again = opener()
    check(again, wanted)
    assert again.end_position == again.durable_position == again.confirmed_position == end
    appended = again.append(draft(topic="TopicA", queue_id=0))
    assert appended.queue_offset == len(wanted["TopicA", 0])
    assert appended.position == end


def test_a_kill_loses_nothing_that_was_committed(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 300)
    opener.crash(store)
    assert (opener.root / "abort").exists()
    check(opener(), wanted)


def test_a_kill_after_a_checkpoint_replays_the_rest(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 150, seed=1)
    store.save_blocking()
    for key, more in fill(store, 150, seed=2).items():
        wanted[key] += more
    for key in wanted:
        wanted[key] = list(wanted[key])
    opener.crash(store)
    again = opener()
    for (topic, queue_id), expected in wanted.items():
        assert bodies(again, topic, queue_id) == expected


@pytest.mark.parametrize("gone", [["consumequeue"], ["index"], ["consumequeue", "index"]])
@pytest.mark.parametrize("clean", [True, False])
def test_deleted_queues_and_index_come_back(opener: Opener, gone: list[str], clean: bool) -> None:
    store = opener()
    wanted = fill(store, 200)
    store.close_blocking() if clean else opener.crash(store)
    for name in gone:
        shutil.rmtree(opener.root / name)
    check(opener(), wanted)


def test_one_deleted_queue_comes_back(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 200)
    store.close_blocking()
    shutil.rmtree(opener.root / "consumequeue" / "TopicB" / "1")
    check(opener(), wanted)


def test_without_a_checkpoint_everything_comes_back(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 200)
    opener.crash(store)
    (opener.root / "checkpoint").unlink()
    check(opener(), wanted)


def _last_segment(opener: Opener) -> Path:
    return max(path for path in (opener.root / "commitlog").iterdir() if path.is_file())


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_tail_is_cut_at_the_first_bad_record(opener: Opener, seed: int) -> None:
    chance = random.Random(seed)
    store = opener(segment_bytes=65536)
    appended = []
    for number in range(60):
        appended.append(store.append(draft(b"%d:" % number + bytes(chance.randrange(500)))))
        store.commit()
    opener.crash(store)
    at = chance.randrange(appended[20].position, appended[-1].end)
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x55]))
    victim = next(number for number, a in enumerate(appended) if a.position <= at < a.end)
    again = opener(segment_bytes=65536)
    got = bodies(again)
    # Flags, hosts and times are not covered by a CRC; whatever is damaged there is still a record.
    assert len(got) in (victim, 60)
    if len(got) == victim:
        assert again.end_position == appended[victim].position
        with (opener.root / "commitlog" / ("0" * 20)).open("rb") as file:
            file.seek(again.end_position)
            assert not any(file.read())


def test_stale_records_behind_a_cut_never_come_back(opener: Opener) -> None:
    store = opener()
    one = store.append(draft(b"1" * 100))
    store.append(draft(b"2" * 100))
    store.append(draft(b"3" * 100))
    store.commit()
    opener.crash(store)
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(one.end)
        file.write(bytes(8))
    store = opener()
    assert bodies(store) == [b"1" * 100]
    store.append(draft(b"4" * 100))
    store.commit()
    opener.crash(store)
    assert bodies(opener()) == [b"1" * 100, b"4" * 100]


def test_a_record_copied_to_another_place_is_not_believed(opener: Opener) -> None:
    store = opener()
    one = store.append(draft(b"1" * 100))
    store.commit()
    opener.crash(store)
    path = opener.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[one.end : one.end + one.size] = data[: one.size]
    path.write_bytes(data)
    again = opener()
    assert bodies(again) == [b"1" * 100]
    assert again.end_position == one.end


def test_segments_after_the_end_are_removed(opener: Opener) -> None:
    store = opener()
    fill(store, 100)
    opener.crash(store)
    names = sorted(p.name for p in (opener.root / "commitlog").iterdir() if p.is_file())
    assert len(names) > 2
    with (opener.root / "commitlog" / names[1]).open("r+b") as file:
        file.write(bytes(16))
    (opener.root / "checkpoint").unlink()
    again = opener()
    assert again.end_position == int(names[1])
    assert len(again.segments) == 2


def test_damage_before_the_checkpoint_is_not_cut(opener: Opener) -> None:
    store = opener()
    fill(store, 100)
    end = store.end_position
    store.close_blocking()
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.write(bytes(16))
    shutil.rmtree(opener.root / "consumequeue")
    assert opener().end_position == end


def test_files_of_another_size_are_refused(opener: Opener) -> None:
    store = opener()
    fill(store, 100)
    store.close_blocking()
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        opener(segment_bytes=32768)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue"):
        opener(queue_file_bytes=4000)
    check_open = opener()
    check_open.close_blocking()


def test_an_empty_last_file_is_removed(opener: Opener) -> None:
    opener().close_blocking()
    (opener.root / "commitlog" / f"{16384 * 3:020d}").touch()
    assert len(opener().segments) == 0


def test_a_log_that_is_gone_leaves_empty_queues_that_go_on_counting(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    store.commit()
    store.close_blocking()
    shutil.rmtree(opener.root / "commitlog")
    again = opener()
    queue = again.queue("TopicA", 0)
    assert queue is not None
    assert queue.first == queue.end == queue.next_offset == 1
    again.append(draft(b"new"))
    again.commit()
    assert bodies(again) == [b"new"]


@pytest.mark.parametrize(
    "properties", [b"KEYS\x01\xff\x02TAGS\x01\xfe\x02UNIQ_KEY\x01\xfd", b"\x02\x02\x01", b"TAGS"]
)
def test_properties_that_are_no_text_do_not_end_the_log(opener: Opener, properties: bytes) -> None:
    store = opener()
    store.append(draft(b"odd", properties=properties))
    store.append(draft(b"next"))
    store.commit()
    opener.crash(store)
    assert bodies(opener()) == [b"odd", b"next"]


def test_long_topics_come_back(opener: Opener) -> None:
    store = opener()
    topic = "%RETRY%" + "g" * 200
    store.append(draft(b"one", topic=topic))
    store.commit()
    opener.crash(store)
    assert bodies(opener(), topic) == [b"one"]


def test_what_a_kill_left_in_the_page_cache_is_synced_before_it_shows(opener: Opener) -> None:
    from rocketpost.store.files import RealFiles

    class Noting(RealFiles):
        synced: list[str] = []  # noqa: RUF012
        opened: dict[int, str] = {}  # noqa: RUF012

        def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
            fd = super().open(path, write=write, create=create)
            self.opened[fd] = path
            return fd

        def fdatasync(self, fd: int) -> None:
            self.synced.append(self.opened[fd].rpartition("/")[2])
            super().fdatasync(fd)

    store = opener()
    store.append(draft(b"x" * 8000))
    store.append(draft(b"y" * 8000))
    store.append(draft(b"z"))
    store.commit()
    opener.crash(store)
    store = opener(files=Noting())
    assert {f"{0:020d}", f"{16384:020d}"} <= set(Noting.synced)
    assert store.durable_position == store.confirmed_position == store.end_position


def test_a_delayed_message_is_due_when_it_was(opener: Opener) -> None:
    store = opener()
    properties = [
        b"DELAY\x013\x02TAGS\x01t\x02",
        b"DELAY\x0199\x02",
        b"TAGS\x01t\x02",
        b"DELAY\x010\x02",
    ]
    for text in properties:
        store.append(draft(topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=text))
    store.commit()
    opener.crash(store)
    (opener.root / "checkpoint").unlink()
    shutil.rmtree(opener.root / "consumequeue")
    queue = opener().queue("SCHEDULE_TOPIC_XXXX", 2)
    assert queue is not None
    codes = [(queue.entry(offset) or (0, 0, 0))[2] for offset in range(4)]
    now = opener.clock.ms
    assert codes == [now + 10_000, now + 7_200_000, 116, 0]


def test_a_gap_left_by_cleaning_does_not_end_the_log(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 200)
    end = store.end_position
    store.close_blocking()
    (opener.root / "commitlog" / f"{16384:020d}").unlink()
    shutil.rmtree(opener.root / "consumequeue")
    store = opener()
    assert store.end_position == end
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.end == len(wanted["TopicA", 0])
    opener.crash(store)
    (opener.root / "checkpoint").unlink()
    assert opener().end_position == end
