from __future__ import annotations

from array import array

import pytest

from rocketpost.broker.plain_topics import SPECIAL_NAMES, PlainTopics, pack_names
from rocketpost.kernel.send_topics import TopicTable
from rocketpost.model.topic import TopicConfig


class World:
    """Some topics, and the table that they are entered in."""

    def __init__(self) -> None:
        self.configs: dict[str, TopicConfig] = {}
        self.new: set[str] = set()
        self.unused: dict[str, int] = {}
        self.table = TopicTable(array("q", bytes(80)))
        self.plain = PlainTopics(
            topics=self, table=self.table, unannounced=self.new, unused=self.unused
        )

    def find(self, topic: str) -> TopicConfig | None:
        return self.configs.get(topic)

    def add(self, topic: str, message_type: str | None = None) -> bool:
        """Create a topic, send to it the ordinary way, and tell whether it became plain."""
        attributes = {} if message_type is None else {"message.type": message_type}
        self.configs[topic] = TopicConfig(
            topic_name=topic, read_queue_nums=4, write_queue_nums=4, attributes=attributes
        )
        return self.serve(topic)

    def serve(self, topic: str, queue_id: int = 0) -> bool:
        count = self.table.count
        self.plain.add(topic, queue_id, queue_id + 1)
        return self.table.count > count


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("topic", ["Orders", "x" * 127, "a-b_c|d", "%SYS"])
def test_an_ordinary_topic_is_plain(world: World, topic: str) -> None:
    assert world.add(topic)
    assert not world.serve(topic)
    assert len(world.plain) == 1


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g", "x" * 128, "订单"])
def test_other_topics_are_not(world: World, topic: str) -> None:
    assert not world.add(topic)


@pytest.mark.parametrize(
    ("message_type", "is_plain"),
    [
        ("NORMAL", True),
        ("FIFO", True),
        ("MIXED", True),
        ("UNSPECIFIED", True),
        ("DELAY", False),
        ("TRANSACTION", False),
        ("PRIORITY", False),
    ],
)
def test_the_type_of_a_topic_decides(world: World, message_type: str, is_plain: bool) -> None:
    assert world.add("T", message_type) == is_plain


def test_types_do_not_count_if_they_are_not_checked(world: World) -> None:
    world.plain.checks_types = False
    assert world.add("T", "DELAY")
    assert not world.add("U", "PRIORITY")  # its queues are levels all the same


def test_a_new_topic_waits_until_it_is_announced(world: World) -> None:
    world.new.add("T")
    assert not world.add("T")
    world.new.clear()
    assert world.serve("T")


def test_a_topic_without_messages_waits_for_its_first(world: World) -> None:
    world.unused["T"] = 1
    assert not world.add("T")
    world.unused.clear()
    assert world.serve("T")


def test_an_unknown_topic_is_not_plain(world: World) -> None:
    assert not world.serve("deleted")


def test_after_clear_everything_is_looked_at_again(world: World) -> None:
    assert not world.add("T", "PRIORITY")
    world.configs["T"] = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    assert not world.serve("T")
    world.plain.clear(array("q", bytes(80)))
    assert len(world.plain) == 0
    assert world.serve("T")


def test_a_queue_that_may_only_be_read_gets_no_slot(world: World) -> None:
    assert world.add("T")
    world.plain.add("T", 4, 5)
    world.plain.add("T", 3, 5)


def test_special_names_are_packed_with_their_lengths() -> None:
    assert pack_names({"b", "aa"}) == b"\x02aa\x01b"
    assert {"DELAY", "TRAN_MSG", "__CRC32#", "POP_CK"} <= SPECIAL_NAMES
    assert not {"KEYS", "TAGS", "UNIQ_KEY", "WAIT"} & SPECIAL_NAMES
