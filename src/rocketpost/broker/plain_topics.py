"""Plain topics: those whose messages the send lane may take (``kernel.send_lane``).

The lane treats every message alike, so a topic is plain only if nothing about it asks for a
decision: its queues are not priorities, it is no retry or dead-letter topic, and its type admits
ordinary messages. A topic becomes plain when a send to it was served in the ordinary way, one queue
after the other. A change of topics or settings clears the table, and it fills again.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from rocketpost.broker.attributes import MESSAGE_TYPE
from rocketpost.broker.message_type import FIFO, NORMAL, is_typed
from rocketpost.broker.priority import has_levels
from rocketpost.broker.send import NOT_PLAIN
from rocketpost.codec.properties import CHECKSUM_NAME, NAME_END
from rocketpost.kernel.hashing import extend_state
from rocketpost.kernel.send_topics import NAME_BYTES_MAX, TopicTable
from rocketpost.model import properties as names
from rocketpost.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketpost.model.sysflag import MULTI_TAGS
from rocketpost.model.topic import TopicConfig

TOPICS_MAX: Final = 65_536
"""Maximum of topics in the table; those of others are served in the ordinary way."""

SPECIAL_NAMES: Final = (NOT_PLAIN - {names.UNIQUE_KEY, names.KEYS}) | {
    CHECKSUM_NAME.decode().removesuffix(NAME_END)
}
"""Properties with which a message is not plain."""


class Topics(Protocol):
    """The part of the topic table that is used here."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...


def pack_names(properties: Iterable[str]) -> bytes:
    """Return names in the form of the lane: each after a byte with its length."""
    return b"".join(bytes([len(name)]) + name.encode() for name in sorted(properties))


class PlainTopics:
    """Decides which topics are plain, and enters them in the lane's table. Owned by the loop.

    Args:
        topics: The topic table.
        table: The lane's table.
        unannounced: Topics that name servers may not know yet: their first answers are held back.
        unused: Topics created by sends that have no message yet.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        table: TopicTable,
        unannounced: Collection[str],
        unused: Collection[str],
    ) -> None:
        self._topics = topics
        self._table = table
        self._unannounced = unannounced
        self._unused = unused
        self._numbers: dict[str, int] = {}
        self._queues: set[tuple[str, int]] = set()
        self._odd: set[str] = set()
        self.checks_types = True
        """Whether messages must have the type of their topic."""

    def __len__(self) -> int:
        return len(self._numbers)

    def clear(self, offsets: array[int]) -> None:
        """Begin anew, because a topic, a setting or the array of offsets changed.

        Args:
            offsets: The next offset of each queue, by its slot.
        """
        self._numbers.clear()
        self._queues.clear()
        self._odd.clear()
        self._table.clear(offsets)

    def number_of(self, topic: str) -> int | None:
        """Return the number of a topic in the table; None if it was not entered."""
        return self._numbers.get(topic)

    def add(self, topic: str, queue_id: int, slot: int) -> None:
        """Enter a queue that just got a message in the ordinary way, if it is plain."""
        if (topic, queue_id) in self._queues or topic in self._odd:
            return
        config = self._topics.find(topic)
        if config is None or topic in self._unannounced or topic in self._unused:
            return  # a later send may enter it
        number = self._numbers.get(topic)
        if number is None:
            if len(self._numbers) == TOPICS_MAX or not self._is_plain(config):
                self._odd.add(topic)
                return
            number = self._numbers[topic] = self._table.add(
                topic.encode(),
                config.write_queue_nums,
                MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0,
                extend_state(0, f"{topic}#"),
                self._takes_sharded(config),
            )
        if queue_id < config.write_queue_nums:
            self._table.set_slot(number, queue_id, slot)
        self._queues.add((topic, queue_id))

    def _is_plain(self, config: TopicConfig) -> bool:
        topic = config.topic_name
        return (
            topic.isascii()
            and len(topic) <= NAME_BYTES_MAX
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            and not has_levels(config)
            and (not self._is_checked(config) or config.attributes[MESSAGE_TYPE] in (NORMAL, FIFO))
        )

    def _takes_sharded(self, config: TopicConfig) -> bool:
        return not self._is_checked(config) or config.attributes[MESSAGE_TYPE] == FIFO

    def _is_checked(self, config: TopicConfig) -> bool:
        return self.checks_types and is_typed(config)
