from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import RealFiles

from .conftest import Opener, draft
from .test_message_store import bodies


def write(opener: Opener, store: object, *texts: bytes, topic: str = "TopicA") -> None:
    for text in texts:
        store.append(draft(text, topic=topic))  # type: ignore[attr-defined]
    store.confirm(store.commit())  # type: ignore[attr-defined]


def test_a_deleted_topic_is_gone_at_once_and_its_files_soon(opener: Opener) -> None:
    store = opener()
    write(opener, store, *[b"%d" % number for number in range(150)])
    write(opener, store, b"other", topic="TopicB")
    deletion = store.delete_queues("TopicA")
    assert store.queue("TopicA", 0) is None
    assert bodies(store, "TopicB") == [b"other"]
    assert not (opener.root / "consumequeue" / "TopicA").exists()
    assert list((opener.root / "dropped").iterdir())
    deletion.finish_blocking()
    assert not list((opener.root / "dropped").iterdir())


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("end", ["close", "crash"])
@pytest.mark.parametrize("gone", ["nothing", "consumequeue", "checkpoint"])
def test_a_topic_created_again_shows_only_its_new_messages(
    opener: Opener, finished: bool, end: str, gone: str
) -> None:
    store = opener()
    write(opener, store, *[b"old%d" % number for number in range(120)])
    deletion = store.delete_queues("TopicA")
    if finished:
        deletion.finish_blocking()
    again = store.append(draft(b"new"))
    assert again.queue_offset == 120
    store.confirm(store.commit())
    assert bodies(store) == [b"new"]
    if not finished:
        deletion.finish_blocking()
    store.close_blocking() if end == "close" else opener.crash(store)
    if gone == "consumequeue":
        shutil.rmtree(opener.root / "consumequeue")
    elif gone == "checkpoint":
        (opener.root / "checkpoint").unlink()
    store = opener()
    assert bodies(store) == [b"new"]
    assert store.append(draft(b"newer")).queue_offset == 121


def test_a_topic_not_made_again_stays_gone_after_a_crash(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    shutil.rmtree(opener.root / "consumequeue", ignore_errors=True)
    store = opener()
    assert store.queue("TopicA", 0) is None
    assert store.append(draft(b"new")).queue_offset == 1


def test_a_checkpoint_does_not_outrun_a_deletion(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA")  # its one entry is in no file, so there is nothing to move aside
    store.save_blocking()
    opener.crash(store)
    store = opener()
    assert store.queue("TopicA", 0) is None
    assert store.append(draft(b"new")).queue_offset == 1


def test_a_deletion_that_moved_nothing_yet_is_undone_by_a_crash(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA")
    opener.crash(store)
    assert bodies(opener()) == [b"old"]


@pytest.mark.parametrize("saved", [1, 2])
def test_a_deletion_that_moved_the_files_is_finished_after_a_crash(
    opener: Opener, saved: int
) -> None:
    store = opener()
    for number in (1, 2):
        write(opener, store, b"old")
        if number == saved:
            store.save_blocking()
    store.delete_queues("TopicA")
    opener.crash(store)
    (opener.root / "dropped" / "not a deletion").mkdir()
    shutil.copytree(opener.root / "dropped", opener.root / "kept")
    store = opener()
    assert bodies(store) == []
    assert store.append(draft(b"new")).queue_offset == 2
    store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "kept").rename(opener.root / "dropped")
    assert bodies(opener()) == [b"new"]


def test_a_topic_deleted_twice_continues_its_offsets(opener: Opener) -> None:
    store = opener()
    for round_ in range(3):
        write(opener, store, b"a", b"b")
        queue = store.queue("TopicA", 0)
        assert queue is not None
        assert (queue.first, queue.end) == (round_ * 2, round_ * 2 + 2)
        store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    assert opener().append(draft()).queue_offset == 6


def test_messages_waiting_for_the_disk_are_deleted_too(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"old"))
    store.commit()
    store.append(draft(b"old too"))
    store.delete_queues("TopicA").finish_blocking()
    store.append(draft(b"new"))
    end = store.commit()
    assert [arrival.first_offset for arrival in store.confirm(end)] == [2]
    assert bodies(store) == [b"new"]


def test_a_deletion_past_a_lost_tail_does_not_hide_what_comes_there(opener: Opener) -> None:
    store = opener()
    kept = store.append(draft(b"kept", topic="TopicB"))
    store.append(draft(b"lost"))
    store.confirm(store.commit())
    deletion = store.delete_queues("TopicA")
    # And a power cut before the checkpoint that makes the log durable.
    deletion._deleter.save_blocking()
    deletion._deleter.unlink_blocking()
    opener.crash(store)
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(kept.end)
        file.write(bytes(8))
    (opener.root / "extent").unlink()
    store = opener()
    assert store.end_position == kept.end
    store.append(draft(b"new"))
    store.confirm(store.commit())
    store.close_blocking()
    shutil.rmtree(opener.root / "consumequeue")
    assert bodies(opener()) == [b"new"]


def test_a_topic_without_queues_can_be_deleted(opener: Opener) -> None:
    store = opener()
    store.delete_queues("Nowhere").finish_blocking()
    store.close_blocking()
    opener()


@pytest.mark.parametrize("damage", ["?", "", None])
@pytest.mark.parametrize("name", ["droppedTopics.json", "droppedTopics.json.bak"])
def test_a_damaged_list_has_a_copy(opener: Opener, name: str, damage: str | None) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    store.close_blocking()
    path = opener.root / "config" / name
    whole = path.read_bytes()
    path.unlink() if damage is None else path.write_text(damage)
    store = opener()
    assert store.append(draft(b"new")).queue_offset == 1
    assert path.read_bytes() == whole


def test_a_lost_list_stops_the_start(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    store.close_blocking()
    (opener.root / "config" / "droppedTopics.json").write_text("?")
    (opener.root / "config" / "droppedTopics.json.bak").unlink()
    with pytest.raises(StoreError, match=r"droppedTopics\.json.*remove both"):
        opener()


def test_of_deletions_that_hide_nothing_any_more_the_latest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.store.deleted_topics.COUNTED_MAX", 2)
    deleted_topics = DeletedTopics(RealFiles(), str(tmp_path / "config" / "droppedTopics.json"))
    for number in range(4):
        deleted_topics.add(f"topic{number}", 100 + number, {0: number}, serial=number)
    deleted_topics.add("topic0", 104, {1: 9}, serial=5)
    deleted_topics.settle(101, 1000)
    assert deleted_topics.next_offset("topic1", 0) == 1
    deleted_topics.settle(103, 1000)
    assert [deleted_topics.next_offset(f"topic{number}", 0) for number in range(4)] == [0, 0, 2, 3]
    assert deleted_topics.next_offset("topic0", 1) == 9
    deleted_topics.settle(0, 102)
    assert deleted_topics.is_changed
    assert deleted_topics.deleted_before("topic3") == deleted_topics.deleted_before("topic0") == 102
    deleted_topics.save_blocking()
    assert not deleted_topics.is_changed
    again = DeletedTopics(RealFiles(), str(tmp_path / "config" / "droppedTopics.json"))
    again.load_blocking()
    assert again.encode() == deleted_topics.encode()
    assert again.serial == 5


def test_queue_files_that_a_crash_brings_back_do_not_turn_the_count_back(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"one")
    store.save_blocking()
    shutil.copytree(opener.root / "consumequeue", opener.root / "kept")
    write(opener, store, b"two")
    store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    shutil.rmtree(opener.root / "consumequeue")
    (opener.root / "kept").rename(opener.root / "consumequeue")
    store = opener()
    assert bodies(store) == []
    assert store.append(draft(b"three")).queue_offset == 2
