"""Topics that the master has deleted: a follower deletes the same messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.errors import CorruptRecord
from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica.deletions import QueueRestarted

from ..conftest import Opener, draft
from .test_raw_append import chunks, follow


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "leader")
    yield opener
    for store in opener.stores:
        store.close_blocking()


def send(store: MessageStore, count: int, topic: str = "TopicA") -> None:
    for _ in range(count):
        store.append(draft(topic=topic))
    store.confirm(store.commit())


def copy(leader: MessageStore, follower: MessageStore) -> None:
    follow(follower, chunks(leader, int(follower.end_position)))
    follower.confirm(Position(follower.end_position))


def take_over(leader: MessageStore, follower: MessageStore) -> bool:
    rest = follower.deletions.follow(leader.deletions.snapshot())
    if rest is not None:
        rest.finish_blocking()
    return rest is not None


def delete_as_rocketmq(store: MessageStore, topic: str = "TopicA") -> None:
    """Delete a topic so that its queues begin again at offset 0."""
    store.delete_queues(topic).finish_blocking()
    store._parts.deleted_topics._by_topic[topic].next.clear()


def copy_restarted(leader: MessageStore, follower: MessageStore) -> int:
    """Copy record by record, as a stream does; returns how many queues began again."""
    count = 0
    while follower.end_position < leader.end_position:
        begin = int(follower.end_position)
        record = leader.record_at(begin)
        size = leader.end_position - begin if record is None else record.size
        view = leader.view(begin, size)
        assert view is not None
        try:
            follower.append_raw(Position(begin), bytes(view))
        except QueueRestarted as restarted:
            rest = follower.deletions.restart(restarted)
            assert rest is not None
            rest.finish_blocking()
            count += 1
        follower.confirm(Position(follower.end_position))
    return count


def bounds(store: MessageStore, topic: str = "TopicA") -> tuple[int, int] | None:
    queue = store.queue(topic, 0)
    return None if queue is None else (int(queue.first), int(queue.end))


def test_the_queues_of_a_deleted_topic_are_deleted(leader: Opener, opener: Opener) -> None:
    ours, theirs = opener(), leader()
    send(theirs, 3)
    send(theirs, 2, "TopicB")
    copy(theirs, ours)
    assert not take_over(theirs, ours)
    theirs.delete_queues("TopicA").finish_blocking()
    assert take_over(theirs, ours)
    assert bounds(ours) is None
    assert bounds(ours, "TopicB") == (0, 2)
    assert not take_over(theirs, ours), "it is deleted already"
    # The topic is created again; its offsets continue, here as at the leader.
    send(theirs, 1)
    copy(theirs, ours)
    assert bounds(ours) == bounds(theirs) == (3, 4)


@pytest.mark.parametrize("is_clean", [True, False])
def test_messages_of_the_next_topic_of_that_name_stay(
    leader: Opener, opener: Opener, *, is_clean: bool
) -> None:
    ours, theirs = opener(), leader()
    send(theirs, 3)
    theirs.delete_queues("TopicA").finish_blocking()
    send(theirs, 2)
    copy(theirs, ours)
    assert bounds(ours) == (0, 5)
    assert take_over(theirs, ours)
    assert bounds(ours) == bounds(theirs) == (3, 5)
    if is_clean:
        ours.close_blocking()
        opener.stores.remove(ours)
    else:
        opener.crash(ours)
    ours = opener()
    assert bounds(ours) == (3, 5)
    send(theirs, 1)
    copy(theirs, ours)
    assert bounds(ours) == (3, 6)


def test_a_message_that_is_not_visible_yet_stays(leader: Opener, opener: Opener) -> None:
    ours, theirs = opener(), leader()
    send(theirs, 3)
    copy(theirs, ours)
    theirs.delete_queues("TopicA").finish_blocking()
    send(theirs, 1)
    follow(ours, chunks(theirs, int(ours.end_position)))
    assert take_over(theirs, ours)
    ours.confirm(Position(ours.end_position))
    assert bounds(ours) == (3, 4)


def test_offsets_of_a_topic_without_queues_here_are_not_assigned_again(
    leader: Opener, opener: Opener
) -> None:
    ours, theirs = opener(), leader()
    send(theirs, 3)
    theirs.delete_queues("TopicA").finish_blocking()
    assert take_over(theirs, ours)
    send(ours, 1)
    assert bounds(ours) == (3, 4)


@pytest.mark.parametrize("how", ["clean", "crash", "no checkpoint"])
def test_a_queue_that_begins_again_at_0_is_followed(
    leader: Opener, opener: Opener, how: str
) -> None:
    ours, theirs = opener(), leader()
    for _ in range(2):
        send(theirs, 5)
        send(theirs, 3, "TopicB")
        delete_as_rocketmq(theirs)
    send(theirs, 2)
    assert copy_restarted(theirs, ours) == 2
    assert bounds(ours) == bounds(theirs) == (0, 2)
    assert bounds(ours, "TopicB") == (0, 6)
    if how == "clean":
        ours.close_blocking()
        opener.stores.remove(ours)
    else:
        opener.crash(ours)
    if how == "no checkpoint":
        (opener.root / "checkpoint").unlink()
    ours = opener()
    assert bounds(ours) == (0, 2)
    queue, same = ours.queue("TopicA", 0), theirs.queue("TopicA", 0)
    assert queue is not None
    assert same is not None
    assert queue.read(0, 10) == same.read(0, 10)
    send(theirs, 1)
    assert copy_restarted(theirs, ours) == 0
    assert bounds(ours) == (0, 3)


def test_a_record_with_another_offset_than_the_next_is_still_refused(
    leader: Opener, opener: Opener
) -> None:
    ours, theirs = opener(), leader()
    send(theirs, 4)
    copy(theirs, ours)
    delete_as_rocketmq(theirs)
    theirs._parts.deleted_topics._by_topic["TopicA"].next[0] = 1
    send(theirs, 1)
    with pytest.raises(CorruptRecord, match="offset 1"):
        copy_restarted(theirs, ours)
