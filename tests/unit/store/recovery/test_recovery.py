from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path
from zlib import crc32

import pytest

from rocketpost.codec.record import MAGIC_V1, MAGIC_V2, Record, decode_record, encode_record
from rocketpost.errors import StoreError
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import FILLER_SIZE

from ..conftest import HOST, Opener, Roomy, draft
from ..test_message_store import bodies


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
            store.confirm(store.commit())
    store.confirm(store.commit())
    return wanted


def readable(store: MessageStore, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    """Return the bodies that a reader gets who passes over what is lost."""
    queue = store.queue(topic, queue_id)
    assert queue is not None
    found = []
    for offset in range(queue.first, queue.end):
        entry = queue.entry(offset)
        assert entry is not None
        position, size, _ = entry
        view = store.view(position, size) if size != FILLER_SIZE else None
        if view is not None:
            record = decode_record(view)
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert (record.position, record.queue_offset) == (position, offset)
            found.append(bytes(record.body))
    return found


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


def _damage(opener: Opener, at: int, data: bytes) -> None:
    size = 16384
    path = opener.root / "commitlog" / f"{at - at % size:020d}"
    with path.open("r+b") as file:
        file.seek(at % size)
        file.write(data)


def _flip(opener: Opener, at: int) -> None:
    size = 16384
    path = opener.root / "commitlog" / f"{at - at % size:020d}"
    data = path.read_bytes()
    _damage(opener, at, bytes([data[at % size] ^ 0x10]))


@pytest.mark.parametrize("what", ["torn", "absent"])
def test_a_torn_tail_is_cut_off(opener: Opener, what: str) -> None:
    store = opener()
    appended = []
    for number in range(20):
        appended.append(store.append(draft(b"%d:" % number + bytes(100))))
        store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "extent").unlink()  # as if it had not reached the disk, as the tail has not
    kept = appended[-2].end
    torn = kept + 150 if what == "torn" else kept
    _damage(opener, torn, bytes(16384 - torn))
    again = opener()
    assert len(bodies(again)) == 19
    assert again.end_position == kept
    assert again.damage.all() == []
    assert not any((opener.root / "commitlog" / ("0" * 20)).read_bytes()[kept:])


def test_a_torn_tail_does_not_reach_back_before_what_was_durable(opener: Opener) -> None:
    store = opener()
    appended = [store.append(draft(b"%d" % number)) for number in range(5)]
    store.confirm(store.commit())
    store.flush_blocking()
    opener.crash(store)
    last = appended[-1]
    _flip(opener, last.end - 10)
    again = opener()
    assert again.end_position == last.end
    assert [damage[:2] for damage in again.damage.all()] == [(last.position, last.end)]
    assert again.append(draft(b"next")).queue_offset == 5


class AnotherBoot(Roomy):
    """The files after the machine was started anew."""

    def boot_id(self) -> str:
        return "another"


def test_after_a_power_cut_the_log_ends_at_the_first_torn_record(opener: Opener) -> None:
    """Later records that survived may rely on records that did not."""
    store = opener()
    appended = [store.append(draft(b"%d:" % number + bytes(100))) for number in range(5)]
    store.confirm(store.commit())
    store.flush_blocking()
    extent = (opener.root / "extent").read_bytes()
    appended += [store.append(draft(b"%d:" % number + bytes(100))) for number in range(5, 10)]
    store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "extent").write_bytes(extent)  # nothing was synced since
    torn = appended[7].position
    _flip(opener, torn + 150)
    log = (opener.root / "commitlog" / ("0" * 20)).read_bytes()
    again = opener(files=AnotherBoot())
    assert again.end_position == torn
    assert len(bodies(again)) == 7
    assert again.damage.all() == []
    kept = (opener.root / "cut-tails" / f"{torn:020d}").read_bytes()
    assert kept[: appended[9].end - torn] == log[torn : appended[9].end]
    assert not any((opener.root / "commitlog" / ("0" * 20)).read_bytes()[torn:])


def test_after_a_kill_what_follows_a_bad_record_is_kept(opener: Opener) -> None:
    store = opener()
    appended = [store.append(draft(b"%d:" % number + bytes(100))) for number in range(10)]
    store.confirm(store.commit())
    opener.crash(store)
    _flip(opener, appended[7].position + 150)
    again = opener()
    assert len(readable(again)) == 9
    assert not (opener.root / "cut-tails").exists()


def test_a_power_cut_does_not_cut_what_was_durable(opener: Opener) -> None:
    store = opener()
    appended = [store.append(draft(b"%d:" % number + bytes(100))) for number in range(10)]
    store.confirm(store.commit())
    store.flush_blocking()
    opener.crash(store)
    _flip(opener, appended[7].position + 150)
    again = opener(files=AnotherBoot())
    assert len(readable(again)) == 9
    assert [damage[0] for damage in again.damage.all()] == [appended[7].position]


@pytest.mark.parametrize("verify", [True, False])
def test_bodies_are_verified_if_checkCRCOnRecover_says_so(opener: Opener, verify: bool) -> None:
    store = opener()
    first, second = (store.append(draft(number * 100)) for number in (b"1", b"2"))
    store.confirm(store.commit())
    opener.crash(store)
    _flip(opener, first.position + 150)
    again = opener(verify_crc=verify)
    found = [damage[:2] for damage in again.damage.all()]
    assert found == ([(first.position, second.position)] if verify else [])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("victim", [0, 7, 30, 58])
def test_one_flipped_bit_costs_one_message(opener: Opener, victim: int, clean: bool) -> None:
    store = opener()
    wanted: dict[int, list[bytes]] = {0: [], 1: []}
    appended = []
    for number in range(60):
        body = b"%d:" % number + bytes(500)
        appended.append(store.append(draft(body, queue_id=number % 2)))
        store.confirm(store.commit())
        if number != victim:
            wanted[number % 2].append(body)
    store.close_blocking() if clean else opener.crash(store)
    if clean:
        shutil.rmtree(opener.root / "consumequeue")
    _flip(opener, appended[victim].position + 300)
    again = opener()
    assert {queue_id: readable(again, queue_id=queue_id) for queue_id in wanted} == wanted
    (damage,) = again.damage.all()
    assert (damage.begin, damage.end) == (appended[victim].position, appended[victim].end)
    assert (damage.topic, damage.queue_id, damage.queue_offset) == (
        "TopicA",
        victim % 2,
        victim // 2,
    )
    for queue_id in wanted:
        assert again.append(draft(queue_id=queue_id)).queue_offset == 30
    assert again.append(draft()).position >= appended[-1].end


@pytest.mark.parametrize("field", [12, 13, 15, 20, 26, 27, 94, 95])
@pytest.mark.parametrize("victim", [0, 1, 9, 30, 31, 58, 59])
def test_a_flipped_field_costs_one_message_and_no_queue_starts_over(
    opener: Opener, victim: int, field: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes at 12 are the queue id, at 20 the queue offset, at 94 the topic."""
    store = opener()
    appended = []
    for number in range(60):
        appended.append(store.append(draft(b"%05d" % number, queue_id=number % 2)))
        store.confirm(store.commit())
    opener.crash(store)
    _flip(opener, appended[victim].position + field)
    again = opener()
    got = readable(again, queue_id=0) + readable(again, queue_id=1)
    wanted = [b"%05d" % number for number in (*range(0, 60, 2), *range(1, 60, 2))]
    missing = [body for body in wanted if body not in got]
    assert len(missing) <= 1
    # The first record of a queue may have become the first of another; that queue's gap shows.
    gaps = [line for line in caplog.messages if "messages are missing in a queue" in line]
    assert bool(missing) <= bool(again.damage.count or (gaps and victim < 2))
    assert again.damage.count <= 1
    assert all(again.append(draft(queue_id=queue_id)).queue_offset >= 30 for queue_id in (0, 1))


@pytest.mark.parametrize("size", [1, 8, 100, 600, 5000])
def test_records_after_a_damaged_range_are_kept(opener: Opener, size: int) -> None:
    store = opener()
    appended = [store.append(draft(b"%d:" % n + bytes(300), queue_id=n % 2)) for n in range(80)]
    store.confirm(store.commit())
    opener.crash(store)
    begin = appended[20].position
    _damage(opener, begin, random.Random(size).randbytes(size))
    again = opener()
    got = readable(again, queue_id=0) + readable(again, queue_id=1)
    hit = [a for a in appended if a.position < begin + size and a.end > begin]
    assert len(got) == 80 - len(hit)
    assert sum(d.end - d.begin for d in again.damage.all()) == hit[-1].end - hit[0].position
    for queue_id in (0, 1):
        assert again.append(draft(queue_id=queue_id)).queue_offset == 40


def test_damage_at_the_end_gives_no_offset_a_second_time(opener: Opener) -> None:
    """Whose records they were nobody knows, so every queue leaves room for them."""
    store = opener()
    appended = [store.append(draft(b"x" * 50, queue_id=n % 3)) for n in range(30)]
    store.confirm(store.commit())
    store.flush_blocking()
    opener.crash(store)
    _damage(opener, appended[20].position, bytes(appended[-1].end - appended[20].position))
    again = opener()
    assert again.end_position == appended[-1].end
    for queue_id in range(3):
        assert again.append(draft(queue_id=queue_id)).queue_offset >= 10
    again.confirm(again.commit())
    opener.crash(again)
    assert opener().damage.count == 1


def test_a_body_that_looks_like_a_record_is_not_taken_for_one(opener: Opener) -> None:
    """A sender who guesses positions cannot have a message of his put into a queue by damage."""
    store = opener()
    one = store.append(draft(b"one"))
    forged = encode_record(
        Record(
            size=0, magic=0xDAA320A7, body_crc=crc32(b"forged") & 0x7FFFFFFF,
            position=one.end + 88 + 40, queue_offset=1, topic="TopicA", body=b"forged", queue_id=0,
            flag=0, sys_flag=0, born_ms=1, born_host_bytes=HOST, store_ms=opener.clock.ms,
            store_host_bytes=HOST, reconsume_times=0, prepared_position=0, properties_bytes=b"",
        )
    )  # fmt: skip
    body = bytes(40) + b"".join(map(bytes, forged)) + bytes(40)
    two = store.append(draft(body))
    three = store.append(draft(b"three"))
    store.confirm(store.commit())
    opener.crash(store)
    _flip(opener, two.position + 90)
    again = opener()
    assert readable(again) == [b"one", b"three"]
    assert again.damage.all()[0][:2] == (two.position, three.position)


def test_a_damaged_range_is_searched_in_one_pass(opener: Opener) -> None:
    """Bodies full of magics must not make recovery look at each byte many times."""
    store = opener(segment_bytes=2**20, message_bytes_max=2**19)
    store.append(draft(b"one"))
    two = store.append(draft(b"\xda\xa3\x20\xa7" * 2**16))
    store.append(draft(b"three"))
    store.confirm(store.commit())
    opener.crash(store)
    path = opener.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[two.position : two.position + 8] = bytes(8)
    path.write_bytes(data)
    again = opener(segment_bytes=2**20, message_bytes_max=2**19)
    assert readable(again) == [b"one", b"three"]


def test_stale_records_after_a_cut_never_reappear(opener: Opener) -> None:
    store = opener()
    one = store.append(draft(b"1" * 100))
    store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "extent").unlink()
    torn = draft(b"2" * 100)
    assert torn
    _damage(opener, one.end, b"\0\0\0\xc9\xda\xa3\x20\xa7" + b"2" * 400)
    store = opener()
    assert bodies(store) == [b"1" * 100]
    assert store.end_position == one.end
    store.append(draft(b"4" * 100))
    store.confirm(store.commit())
    opener.crash(store)
    assert bodies(opener()) == [b"1" * 100, b"4" * 100]


def test_a_record_copied_to_another_place_is_not_believed(opener: Opener) -> None:
    store = opener()
    one = store.append(draft(b"1" * 100))
    store.confirm(store.commit())
    opener.crash(store)
    path = opener.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[one.end : one.end + one.size] = data[: one.size]
    path.write_bytes(data)
    again = opener()
    assert bodies(again) == [b"1" * 100]
    assert again.end_position == one.end


def test_empty_segments_after_the_end_are_removed(opener: Opener) -> None:
    store = opener()
    fill(store, 100)
    end = store.end_position
    opener.crash(store)
    last = int(_last_segment(opener).name)
    (opener.root / "commitlog" / f"{last + 16384:020d}").write_bytes(bytes(16384))
    again = opener()
    assert again.end_position == end
    assert again.segments.all()[-1].start == last


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_zeroed_start_of_a_segment_does_not_take_the_later_ones_with_it(
    opener: Opener, checkpoint: bool
) -> None:
    store = opener()
    wanted = fill(store, 100)
    end = store.end_position
    opener.crash(store)
    names = sorted(p.name for p in (opener.root / "commitlog").iterdir() if p.is_file())
    assert len(names) > 2
    with (opener.root / "commitlog" / names[1]).open("r+b") as file:
        file.write(bytes(16))
    if not checkpoint:
        (opener.root / "checkpoint").unlink()
    again = opener()
    assert again.end_position == end
    (damage,) = again.damage.all()
    assert damage.begin == int(names[1])
    got = sum(len(readable(again, *key)) for key in wanted)
    assert got == 99


def test_damage_before_the_checkpoint_is_not_cut(opener: Opener) -> None:
    store = opener()
    fill(store, 100)
    end = store.end_position
    store.close_blocking()
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.write(bytes(16))
    shutil.rmtree(opener.root / "consumequeue")
    again = opener()
    assert again.end_position == end
    assert again.damage.count == 1


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_segment_stops_the_start(opener: Opener, clean: bool, which: int) -> None:
    store = opener()
    wanted = fill(store, 200)
    store.flush_blocking()
    end = store.end_position
    ends = {key: len(expected) for key, expected in wanted.items()}
    store.close_blocking() if clean else opener.crash(store)
    size = 16384
    starts = range(0, end, size)
    gone = starts[which]
    (opener.root / "commitlog" / f"{gone:020d}").unlink()
    before = {path: path.read_bytes() for path in opener.root.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=rf"lacks {gone:020d}.*--accept-missing-log"):
        opener()
    after = {path: path.read_bytes() for path in opener.root.rglob("*") if path.is_file()}
    assert before == after
    again = opener(accept_missing=True)
    got = {key: readable(again, *key) for key in wanted}
    for key, expected in wanted.items():
        lost = [body for body in expected if body not in got[key]]
        assert got[key] == [body for body in expected if body not in lost]
        appended = again.append(draft(topic=key[0], queue_id=key[1]))
        assert appended.queue_offset >= ends[key]
        assert appended.position >= end
    again.confirm(again.commit())
    opener.crash(again)
    opener().close_blocking()  # what was accepted stays so


def test_a_segment_that_is_put_back_is_read_again(opener: Opener) -> None:
    store = opener()
    wanted = fill(store, 100)
    store.close_blocking()
    path = opener.root / "commitlog" / f"{16384:020d}"
    data = path.read_bytes()
    path.unlink()
    store = opener(accept_missing=True)
    assert store.damage.count == 1
    store.close_blocking()
    path.write_bytes(data)
    store = opener()
    check(store, wanted)
    assert store.damage.count == 0


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


def test_queues_of_a_lost_log_are_empty_and_continue_their_offsets(opener: Opener) -> None:
    store = opener()
    end = store.append(draft()).end
    store.confirm(store.commit())
    store.close_blocking()
    shutil.rmtree(opener.root / "commitlog")
    with pytest.raises(StoreError, match=r"lacks 0{20}, "):
        opener()
    opener(accept_missing=True).close_blocking()
    again = opener()
    queue = again.queue("TopicA", 0)
    assert queue is not None
    assert queue.first == queue.end == queue.next_offset == 1
    assert again.append(draft(b"new")).position >= end
    again.confirm(again.commit())
    assert bodies(again) == [b"new"]
    opener.crash(again)
    assert bodies(opener()) == [b"new"]


@pytest.mark.parametrize(
    "properties", [b"KEYS\x01\xff\x02TAGS\x01\xfe\x02UNIQ_KEY\x01\xfd", b"\x02\x02\x01", b"TAGS"]
)
def test_properties_that_are_no_text_do_not_end_the_log(opener: Opener, properties: bytes) -> None:
    store = opener()
    store.append(draft(b"odd", properties=properties))
    store.append(draft(b"next"))
    store.confirm(store.commit())
    opener.crash(store)
    assert bodies(opener()) == [b"odd", b"next"]


def test_long_topics_come_back(opener: Opener) -> None:
    store = opener()
    topic = "%RETRY%" + "g" * 200
    store.append(draft(b"one", topic=topic))
    store.confirm(store.commit())
    opener.crash(store)
    assert bodies(opener(), topic) == [b"one"]


@pytest.mark.parametrize(("second", "magic"), [(True, MAGIC_V2), (False, MAGIC_V1)])
def test_long_topics_have_a_format_of_their_own(opener: Opener, second: bool, magic: int) -> None:
    """autoMessageVersionOnTopicLen=false keeps to the first one."""
    store = opener(long_topics=second)
    store.append(draft(b"one", topic="%RETRY%" + "g" * 200))
    store.confirm(store.commit())
    record = store.record_at(0)
    assert record is not None
    assert record.magic == magic


def test_bytes_in_the_page_cache_after_a_kill_are_synced_before_they_show(opener: Opener) -> None:
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
    store.confirm(store.commit())
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
    store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "checkpoint").unlink()
    shutil.rmtree(opener.root / "consumequeue")
    queue = opener().queue("SCHEDULE_TOPIC_XXXX", 2)
    assert queue is not None
    codes = [(queue.entry(offset) or (0, 0, 0))[2] for offset in range(4)]
    now = opener.clock.ms
    assert codes == [now + 10_000, now + 7_200_000, 116, 0]


def test_a_damaged_segment_is_read_up_to_where_reading_starts_anyway(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener()
    for _ in range(5):
        store.append(draft())
    store.confirm(store.commit())
    store.save_blocking()
    for _ in range(5):
        store.append(draft())
    store.confirm(store.commit())
    path = store.layout.segment(0)
    opener.crash(store)
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(b"XXXX")
    caplog.set_level(logging.INFO)
    store = opener()
    assert "replayed=9 " in caplog.text
    assert len(store.damage.all()) == 1
