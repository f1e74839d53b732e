"""Expression filters of groups, by topic: the table of ``consumerFilter.json``.

Heartbeats create the entries. When a group disconnects, its entries become dead but stay for a day,
so that its lag can still be counted. The next heartbeat revives them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from rocketpost.codec.bloom import BloomShape, bloom_positions, bloom_shape
from rocketpost.codec.bodies.filter import (
    BloomData,
    ConsumerFilters,
    FilterData,
    TopicFilters,
    decode_filters,
    encode_filters,
)
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.filter.tokens import LENGTH_MAX
from rocketpost.model.clock import Clock
from rocketpost.model.group import Subscription

logger = logging.getLogger(__name__)

ENTRIES_MAX: Final = 20_000
CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""Length of all expressions; beyond it, dead entries are removed, the longest dead first."""
KEEP_MS: Final = 24 * 3600 * 1000
_DEAD_SINCE_LOAD_MS: Final = 30_000


class FilterTable:
    """The filters of groups. Owned by the event loop.

    Attributes:
        keep_ms: Time that dead entries stay.
        bloom: The shape of the bits that the file carries for Java.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._by_group: dict[str, dict[str, FilterData]] = {}
        self._count = 0
        self._characters = 0
        self.revision = 0
        self.keep_ms = KEEP_MS
        self.bloom: BloomShape = bloom_shape(20, 32)
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[FilterData]:
        for topics in self._by_group.values():
            yield from topics.values()

    def find(self, topic: str, group: str) -> FilterData | None:
        """Return the filter of a group for a topic, dead or alive."""
        return self._by_group.get(group, {}).get(topic)

    def update(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Update a group's filters from a heartbeat, which names all its topics."""
        wanted = {each.topic: each for each in subscriptions if not each.is_tag}
        if not wanted and group not in self._by_group:
            return
        for topic in [*self._by_group.get(group, ())]:
            if topic not in wanted:
                self._mark_entry_dead(group, topic)
        for subscription in wanted.values():
            self._put_subscription(group, subscription)

    def mark_dead(self, group: str) -> None:
        """Note that the last client of a group has disconnected."""
        for topic in [*self._by_group.get(group, ())]:
            self._mark_entry_dead(group, topic)

    def expire(self) -> None:
        """Remove entries that have been dead for too long."""
        limit = self._clock.now_ms() - self.keep_ms
        for data in [each for each in self if each.dead_time and each.dead_time < limit]:
            self._remove(data)

    # On disk.

    def to_json(self) -> bytes:
        """Return the text of ``consumerFilter.json``."""
        topics: dict[str, TopicFilters] = {}
        for data in self:
            named = f"{data.consumer_group}#{data.topic}"
            bits = BloomData(
                bit_num=self.bloom.bit_count, bit_pos=bloom_positions(named, self.bloom)
            )
            row = topics.setdefault(data.topic, TopicFilters(topic=data.topic))
            row.group_filter_data[data.consumer_group] = msgspec.structs.replace(
                data, bloom_filter_data=bits, dead=data.dead_time > 0
            )
        return encode_filters(ConsumerFilters(filter_data_by_topic=topics))

    def load(self, data: bytes) -> None:
        """Load the table from ``consumerFilter.json``; entries are dead until a client connects.

        Raises:
            StoreError: The text is not such a table.
        """
        try:
            table = decode_filters(data)
        except RemoteProtocolError as error:
            raise StoreError(f"consumerFilter.json cannot be read: {error}") from None
        now_ms = self._clock.now_ms()
        for topic, row in table.filter_data_by_topic.items():
            for group, found in row.group_filter_data.items():
                dead_ms = found.dead_time or max(found.born_time, now_ms - _DEAD_SINCE_LOAD_MS)
                self._put(
                    msgspec.structs.replace(
                        found,
                        topic=topic,
                        consumer_group=group,
                        dead_time=dead_ms,
                        bloom_filter_data=None,
                    )
                )

    def follow(self, data: bytes) -> None:
        """Apply the table of a leader, as :meth:`to_json` returns it.

        Raises:
            StoreError: The text is not such a table.
        """
        for known in [*self]:
            self._remove(known)
        self.load(data)
        self.revision += 1

    # Inside.

    def _put_subscription(self, group: str, subscription: Subscription) -> None:
        known = self.find(subscription.topic, group)
        version = subscription.sub_version
        # A text that is too long is refused without a look at its end.
        text = subscription.sub_string[: LENGTH_MAX + 1]
        if known is not None:
            kind = subscription.expression_type
            same = (known.expression, known.expression_type) == (text, kind)
            if same:
                self._confirm(known, version)
                return
            # A returning group may have another text and a clock that is behind.
            if version <= known.client_version and not known.dead_time:
                logger.warning("older filter ignored: group=%s topic=%s", group, subscription.topic)
                return
        if not self._make_room(len(text)):
            logger.error("no room for a filter: group=%s topic=%s", group, subscription.topic)
            return
        self._put(
            FilterData(
                born_time=self._clock.now_ms(),
                client_version=version,
                consumer_group=group,
                expression=text,
                expression_type=subscription.expression_type or "",
                topic=subscription.topic,
            )
        )

    def _confirm(self, known: FilterData, version: int) -> None:
        if known.dead_time or version > known.client_version:
            version = max(version, known.client_version)
            self._put(msgspec.structs.replace(known, dead_time=0, client_version=version))

    def _mark_entry_dead(self, group: str, topic: str) -> None:
        known = self._by_group[group][topic]
        if not known.dead_time:
            self._put(msgspec.structs.replace(known, dead_time=self._clock.now_ms()))

    def _make_room(self, characters: int) -> bool:
        def is_full() -> bool:
            too_long = self._characters + characters > CHARACTERS_MAX
            return too_long or self._count >= ENTRIES_MAX

        if not is_full():
            return True
        dead = sorted((each for each in self if each.dead_time), key=lambda each: each.dead_time)
        for data in dead:
            self._remove(data)
            if not is_full():
                return True
        return False

    def _put(self, data: FilterData) -> None:
        topics = self._by_group.setdefault(data.consumer_group, {})
        before = topics.get(data.topic)
        self._count += before is None
        self._characters += len(data.expression) - (len(before.expression) if before else 0)
        topics[data.topic] = data
        self._note_change()

    def _remove(self, data: FilterData) -> None:
        topics = self._by_group[data.consumer_group]
        del topics[data.topic]
        if not topics:
            del self._by_group[data.consumer_group]
        self._count -= 1
        self._characters -= len(data.expression)
        self._note_change()

    def _note_change(self) -> None:
        self.revision += 1
        self.on_change()
