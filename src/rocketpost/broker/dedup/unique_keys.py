"""Duplicates of producers that number nothing: known by their unique key, for a while.

Every RocketMQ client gives a message a unique key that its retries keep. Where a topic asks for it,
a message whose key was stored within the window is a duplicate. What was rolled back, recalled or
deleted with its topic is no original: whoever sends it again means it. Nothing of this is saved:
after a start the keys are read back from the queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from rocketpost.broker.attributes import DEDUP_SECONDS
from rocketpost.model.clock import Clock
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Appended

Key = tuple[str, str]
"""The topic that a message was sent to, and its unique key."""

KEYS_MAX: Final = 200_000


class KeyWindow:
    """The unique keys that were stored of late. Owned by the loop.

    Attributes:
        is_on: Whether any topic asks for it; the one look that a plain send takes.
        keys_max: So many newest keys are kept, of all topics together.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._keys: OrderedDict[Key, Appended] = OrderedDict()
        self._uncommitted: dict[Key, Appended] = {}
        self._default_ms = 0
        self._windows_ms: dict[str, int] = {}
        self.keys_max = KEYS_MAX
        self.is_on = False
        self.duplicates = 0

    def __len__(self) -> int:
        return len(self._keys)

    def configure(self, *, default_seconds: int, keys_max: int) -> None:
        """Take the window of topics that say nothing themselves, and the bound."""
        self._default_ms = default_seconds * 1000
        self.keys_max = keys_max
        self._settle()

    def watch(self, topic: str, config: TopicConfig | None) -> None:
        """Take the window that a topic names, or that it is gone."""
        text = config.attributes.get(DEDUP_SECONDS, "") if config is not None else ""
        if config is None:  # its messages went with it, so nothing is a duplicate of them
            for key in [key for key in self._keys if key[0] == topic]:
                del self._keys[key]
        if text.isascii() and text.isdecimal():
            self._windows_ms[topic] = int(text) * 1000
        elif self._windows_ms.pop(topic, None) is None:
            return
        self._settle()

    def window_ms(self, topic: str) -> int:
        """Return how long keys of a topic count; 0 if they do not."""
        return self._windows_ms.get(topic, self._default_ms)

    @property
    def window_ms_max(self) -> int:
        """The longest window of all."""
        return max([self._default_ms, *self._windows_ms.values()])

    def original(self, key: Key) -> Appended | None:
        """Return the message that was stored under this key within its topic's window."""
        found = self._uncommitted.get(key) or self._keys.get(key)
        if found is None or found.store_ms < self._clock.now_ms() - self.window_ms(key[0]):
            return None
        return found

    def take(self, key: Key, appended: Appended) -> None:
        """Remember a message that was appended; :meth:`commit` or :meth:`undo` follows."""
        self._uncommitted[key] = appended

    def forget(self, key: Key) -> None:
        """Take a message for no original any more: it will never be delivered."""
        self._keys.pop(key, None)
        self._uncommitted.pop(key, None)

    def commit(self) -> None:
        """Keep what was appended: the log is written."""
        if self._uncommitted:
            uncommitted, self._uncommitted = self._uncommitted, {}
            self.fill(uncommitted)

    def undo(self) -> None:
        """Forget what was appended since the last commit: it could not be written."""
        self._uncommitted = {}

    def fill(self, stored: Mapping[Key, Appended]) -> None:
        """Remember messages that are in the log, oldest first."""
        keys = self._keys
        for key, appended in stored.items():
            keys[key] = appended
            keys.move_to_end(key)
        limit_ms = self._clock.now_ms() - self.window_ms_max
        while keys:
            oldest = next(iter(keys))
            if len(keys) <= self.keys_max and keys[oldest].store_ms >= limit_ms:
                return
            keys.popitem(last=False)

    def _settle(self) -> None:
        self.is_on = self.window_ms_max > 0
        if not self.is_on:
            self._keys = OrderedDict()
