"""The steps that the timer asks for, and the counts of messages that enter and leave its wheel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rocketpost.model.histogram import Histogram
from rocketpost.store.draft import Draft

DELAY_BOUNDS_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)
"""Upper bounds of delays, in seconds."""


class Due(NamedTuple):
    """Messages to store now; :meth:`TimerService.note_stored` is then told how many were stored."""

    drafts: list[Draft]


class Again(NamedTuple):
    """Progress was made; ask again at once."""


AGAIN: Final = Again()


class TimerTally:
    """Counts of timed messages by topic. Owned by the event loop."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        """Messages that entered the wheel."""
        self.left: Counter[str] = Counter()
        """Messages that were delivered."""
        self.delays: dict[str, Histogram] = {}
        """Times in seconds by which messages were put off."""

    def enter(self, taken: Sequence[tuple[Any, Any, int]], now_ms: int) -> None:
        """Count messages that entered: their items, their properties and their places."""
        for item, waiting, _ in taken:
            topic = waiting.topic
            self.entered[topic] += 1
            delays = self.delays.get(topic)
            if delays is None:
                delays = self.delays[topic] = Histogram(DELAY_BOUNDS_S)
            delays.add(max(0, item.due_ms - now_ms) // 1000)

    def leave(self, topic: str) -> None:
        """Count a message that was delivered."""
        self.left[topic] += 1
