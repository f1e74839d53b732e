"""Delivery of waiting messages: the parts of store and tables that it uses, and its pauses."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rocketpost.codec.record import Record
from rocketpost.model.ids import Position
from rocketpost.model.topic import TopicConfig
from rocketpost.store.queue.consume_queue import ConsumeQueue


class Wait(NamedTuple):
    """Time without anything to do; None means until a message arrives or something else happens."""

    ms: int | None


class Records(Protocol):
    """Messages by queue, position and key."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...

    def record_at(self, position: int) -> Record | None:
        """Return the record at a position."""
        ...

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry points to; None if it is gone or damaged."""
        ...

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return positions of messages that may have this key."""
        ...


class Store(Records, Protocol):
    """Messages, and the store time of new ones."""

    def stamp_ms(self) -> int:
        """Return the earliest store time that a message appended now can get."""
        ...


class Topics(Protocol):
    """The topics that messages are delivered to."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        """Return a retry or dead-letter topic, created if need be."""
        ...


class Groups(Protocol):
    """The groups whose retry topics are delivered to."""

    def find(self, group: str) -> object | None:
        """Return the configuration of ``group``."""
        ...
