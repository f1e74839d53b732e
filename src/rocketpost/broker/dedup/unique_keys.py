"""Duplicates from producers without numbering, recognised by unique key for a limited time.

Every RocketMQ client gives a message a unique key that its retries keep. In a topic that asks for
it, a message whose key was stored within the window is a duplicate. A message that was rolled back,
recalled or deleted with its topic is not an original: sending it again is intended. The keys are
not saved; after a start they are read back from the queues.
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
    """The unique keys that were stored recently. Owned by the loop.

    Attributes:
        is_on: Whether any topic has a window; the only check that a plain send makes.
        keys_max: Number of newest keys to keep, of all topics together.
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
        """Set the default window of topics, and the bound on keys."""
        self._default_ms = default_seconds * 1000
        self.keys_max = keys_max
        self._settle()

    def watch(self, topic: str, config: TopicConfig | None) -> None:
        """Set the window of a topic, or forget a topic that was deleted."""
        text = config.attributes.get(DEDUP_SECONDS, "") if config is not None else ""
        if config is None:  # its messages were deleted with it, so nothing duplicates them
            for key in [key for key in self._keys if key[0] == topic]:
                del self._keys[key]
        if text.isascii() and text.isdecimal():
            self._windows_ms[topic] = int(text) * 1000
        elif self._windows_ms.pop(topic, None) is None:
            return
        self._settle()

    def window_ms(self, topic: str) -> int:
        """Return the window of a topic; 0 if its keys are not compared."""
        return self._windows_ms.get(topic, self._default_ms)

    @property
    def window_ms_max(self) -> int:
        """The longest window of any topic."""
        return max([self._default_ms, *self._windows_ms.values()])

    def original(self, key: Key) -> Appended | None:
        """Return the message that was stored under this key within its topic's window."""
        found = self._uncommitted.get(key) or self._keys.get(key)
        if found is None or found.store_ms < self._clock.now_ms() - self.window_ms(key[0]):
            return None
        return found

    def take(self, key: Key, appended: Appended) -> None:
        """Record an appended message; :meth:`commit` or :meth:`undo` follows."""
        self._uncommitted[key] = appended

    def forget(self, key: Key) -> None:
        """Forget a message as an original: it will never be delivered."""
        self._keys.pop(key, None)
        self._uncommitted.pop(key, None)

    def commit(self) -> None:
        """Commit the appended messages: the log is written."""
        if self._uncommitted:
            uncommitted, self._uncommitted = self._uncommitted, {}
            self.fill(uncommitted)

    def undo(self) -> None:
        """Undo the appends since the last commit: they could not be written."""
        self._uncommitted = {}

    def fill(self, stored: Mapping[Key, Appended]) -> None:
        """Add messages from the log, oldest first."""
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
