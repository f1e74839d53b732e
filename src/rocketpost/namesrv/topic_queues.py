"""Queues of each topic by broker, within the bounds of a name server.

topics    topic -> broker name -> queues and permission
mappings  static topic -> broker name -> logical queues

Both count against one bound: a topic once per broker that serves it, a mapping once plus once per
logical queue. A broker has mappings only for topics that it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from rocketpost.codec.bodies.registration import RegisteredTopics
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import SystemBusy
from rocketpost.model.route import QueueData
from rocketpost.model.topic import PERM_WRITE, TopicConfig

_NOBODY: Final[Mapping[str, QueueData]] = {}


class TopicQueues:
    """Queues by topic and broker name. Not thread-safe."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, QueueMapping]] = {}
        self._served: dict[str, dict[str, None]] = {}
        self.entries = 0
        """The number that counts against the bound."""
        self.edition = 0
        """Grows with every change."""

    def topics(self) -> AbstractSet[str]:
        """Return every topic."""
        return self._topics.keys()

    def brokers(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queues of ``topic`` by broker name; empty if no broker serves it."""
        return self._topics.get(topic, _NOBODY)

    def topics_of(self, name: str) -> AbstractSet[str]:
        """Return the topics that the broker ``name`` serves."""
        return self._served.get(name, {}).keys()

    def mappings(self, topic: str) -> dict[str, QueueMapping]:
        """Return the logical queues of ``topic`` by broker name."""
        return dict(self._mappings.get(topic, {}))

    def check_room(self, name: str, table: RegisteredTopics, *, owned: Iterable[str] = ()) -> None:
        """Refuse topics of the broker ``name`` that would exceed a bound.

        Args:
            name: The broker.
            table: Its topics.
            owned: The brokers that the same host registered; together they may use half the bound.

        Raises:
            SystemBusy: The topics would exceed the bound.
        """
        growth = sum(name not in self.brokers(topic) for topic in table.topic_config_table)
        for topic, mapping in table.topic_queue_mapping_info_map.items():
            growth += _cost(mapping) - _cost(self._mappings.get(topic, {}).get(name))
        self.check_growth(growth)
        others = sum(len(self.topics_of(each)) for each in owned if each != name)
        if others and others + len(table.topic_config_table) > self._entries_max // 2:
            raise SystemBusy(
                f"the host of {name} has registered {others} topic entries already, and one host "
                f"may have {self._entries_max // 2} at most"
            )

    def check_growth(self, growth: int) -> None:
        """Refuse ``growth`` more entries if they would exceed the bound.

        Raises:
            SystemBusy: They would exceed it.
        """
        if growth > 0 and self.entries + growth > self._entries_max:
            raise SystemBusy(
                f"the name server is full: {self.entries} of {self._entries_max} topic entries "
                f"are taken and {growth} more were asked for"
            )

    def update(self, name: str, table: RegisteredTopics, *, fresh: bool, read_only: bool) -> None:
        """Add the topics of the broker ``name``: all if ``fresh``, else those not yet known."""
        made: dict[QueueData, QueueData] = {}
        for topic, config in table.topic_config_table.items():
            if fresh or name not in self.brokers(topic):
                queues = _queues(name, config, read_only=read_only)
                # Most topics have equal values: share one object among them.
                self.put(topic, made.setdefault(queues, queues))
        for topic, mapping in table.topic_queue_mapping_info_map.items():
            if fresh and name in self.brokers(topic):
                self._put_mapping(topic, mapping)

    def put(self, topic: str, queues: QueueData) -> None:
        """Set the queues of a topic on one broker."""
        by_broker = self._topics.setdefault(topic, {})
        previous = by_broker.get(queues.broker_name)
        if previous != queues:
            by_broker[queues.broker_name] = queues
            self._served.setdefault(queues.broker_name, {})[topic] = None
            self.entries += previous is None
            self.edition += 1

    def drop(self, name: str, topics: Iterable[str]) -> None:
        """Remove topics of the broker ``name``."""
        for topic in topics:
            queues = self._topics.get(topic)
            if queues is None or queues.pop(name, None) is None:
                continue
            self.entries -= 1
            self.edition += 1
            self._forget_served(name, topic)
            if not queues:
                del self._topics[topic]
            self._drop_mapping(topic, name)

    def drop_broker(self, name: str) -> None:
        """Remove every topic of the broker ``name``."""
        self.drop(name, list(self.topics_of(name)))

    def change_perms(self, name: str, change: Callable[[int], int]) -> int:
        """Change the permission of every topic of a broker; return the number of topics."""
        served = self.topics_of(name)
        for topic in served:
            queues = self._topics[topic]
            queues[name] = replace(queues[name], perm=change(queues[name].perm))
        self.edition += bool(served)
        return len(served)

    def _forget_served(self, name: str, topic: str) -> None:
        served = self._served[name]
        del served[topic]
        if not served:
            del self._served[name]

    def _put_mapping(self, topic: str, mapping: QueueMapping) -> None:
        by_broker = self._mappings.setdefault(topic, {})
        self.entries += _cost(mapping) - _cost(by_broker.get(mapping.bname))
        by_broker[mapping.bname] = mapping
        self.edition += 1

    def _drop_mapping(self, topic: str, name: str) -> None:
        by_broker = self._mappings.get(topic)
        if by_broker is not None and name in by_broker:
            self.entries -= _cost(by_broker.pop(name))
            if not by_broker:
                del self._mappings[topic]


def _queues(name: str, config: TopicConfig, *, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        perm=config.perm & ~PERM_WRITE if read_only else config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )


def _cost(mapping: QueueMapping | None) -> int:
    return 1 + len(mapping.curr_id_map) if mapping is not None else 0
