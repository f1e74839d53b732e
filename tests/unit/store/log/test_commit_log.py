from __future__ import annotations

import mmap

import pytest

from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.log.segment import ReadPages

from ..conftest import Opener, draft
from ..test_message_store import bodies


@pytest.mark.parametrize("topic", ["TopicA", "%RETRY%" + "g" * 150])
@pytest.mark.parametrize("born", ["10.0.0.9", "2001:db8::9"])
@pytest.mark.parametrize("store_host", ["10.0.0.1", "2001:db8::1"])
def test_records_are_those_of_the_codec(
    opener: Opener, topic: str, born: str, store_host: str
) -> None:
    store = opener()
    store.append(draft(b"before"))
    message = draft(b"body", topic=topic, queue_id=3, properties=b"TAGS\x01t\x02")
    message.flag, message.reconsume_times, message.prepared_position = 7, 2, 99
    message.born_host, message.store_host = pack_host(born, 40000), pack_host(store_host, 10911)
    appended = store.append(message)
    store.confirm(store.commit())
    wanted = Record(
        size=0, magic=0, body_crc=0, queue_id=3, flag=7, queue_offset=0,
        position=appended.position, sys_flag=0, born_ms=message.born_ms,
        born_host_bytes=message.born_host, store_ms=opener.clock.ms,
        store_host_bytes=message.store_host, reconsume_times=2, prepared_position=99,
        body=b"body", topic=topic, properties_bytes=b"TAGS\x01t\x02",
    )  # fmt: skip
    assert store.view(appended.position, appended.size) == b"".join(encode_record(wanted))


def test_store_times_of_one_page_read_it_once(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opener()
    appended = [store.append(draft(b"x" * 500)) for _ in range(20)]
    store.confirm(store.commit())
    read: set[int] = set()
    populate = RealFiles.populate

    def noting(self: RealFiles, view: memoryview, offset: int, size: int) -> bool:
        read.add(offset)
        return populate(self, view, offset, size)

    monkeypatch.setattr(RealFiles, "populate", noting)
    queue, pages = store.queue("TopicA", 0), ReadPages()
    assert queue is not None
    times = [queue.store_time(offset, pages) for offset in range(20)]
    assert times == [opener.clock.ms] * 20
    starts = {each.position - each.position % mmap.PAGESIZE for each in appended}
    assert len(starts) <= len(read) < len(appended)
    read.clear()
    queue.store_time(19, pages)
    assert not read
    queue.store_time(19)
    assert read == {appended[19].position}


def test_a_record_that_no_file_could_hold_is_refused(opener: Opener) -> None:
    store = opener()
    with pytest.raises(StoreError, match="does not fit"):
        store.append(draft(b"x" * 16384))
    with pytest.raises(StoreError, match="does not fit"):
        store.append_batch([draft(b"x" * 8000), draft(b"x" * 8000), draft(b"x" * 8000)])
    assert store.append(draft(b"fits")).position == 0


def test_a_record_that_just_fits_leaves_room_for_the_blank(opener: Opener) -> None:
    store = opener()
    overhead = store.append(draft(b"")).size
    exact = store.append(draft(b"x" * (16384 - 8 - 2 * overhead)))
    assert exact.end == 16384 - 8
    assert store.append(draft(b"next")).position == 16384
    store.confirm(store.commit())
    opener.crash(store)
    assert bodies(opener())[-1] == b"next"


def test_zeros_at_the_end_of_properties_do_not_look_like_a_torn_record(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"odd", properties=b"a\x01b\0\0"))
    store.append_batch([draft(b"odd too", properties=b"a\x01\0"), draft(b"next")])
    store.confirm(store.commit())
    opener.crash(store)
    store = opener()
    assert bodies(store) == [b"odd", b"odd too", b"next"]
    record = store.record_at(0)
    assert record is not None
    assert record.properties == {"a": "b\0\0"}


def test_properties_full_of_zeros_are_refused(opener: Opener) -> None:
    store = opener()
    with pytest.raises(StoreError, match="zero bytes"):
        store.append(draft(properties=b"a\x01" + bytes(4096) + b"\x02"))
    with pytest.raises(StoreError, match="zero bytes"):
        store.append(draft(properties=b"a" * 32766 + b"\0"))
    assert store.append(draft(b"fine")).queue_offset == 0
    assert store.append(draft(b"hosts", properties=b"")).position > 0
    store.confirm(store.commit())


def test_the_cache_of_topics_is_bounded(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketpost.store.log.commit_log.TOPIC_CACHE_COUNT_MAX", 3)
    store = opener()
    for number in range(10):
        store.append(draft(topic=f"Topic{number}"))
    assert len(store._log._topics) <= 3
