"""Dead letters as values, and the selection of some of them. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Final, NamedTuple

from rocketpost.client.message import ReceivedMessage
from rocketpost.model import properties as names

UNKNOWN_CAUSE: Final = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions on dead letters; all must hold. Without conditions, every dead letter is selected.

    Attributes:
        ids: One of these is among :attr:`DeadLetter.ids`.
        keys: One of these is a key of the message.
        topic: The topic to which it was sent.
        begin_ms: Dead at this time or later.
        end_ms: Dead at this time or earlier.
        cause: A part of :attr:`DeadLetter.cause`, ignoring case.
    """

    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    cause: str | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Tell whether ``letter`` meets every condition."""
        dead_ms = letter.dead_ms
        return (
            (not self.ids or not self.ids.isdisjoint(letter.ids))
            and (not self.keys or not self.keys.isdisjoint(letter.message.keys))
            and self.topic in (None, letter.topic)
            and (self.begin_ms is None or dead_ms >= self.begin_ms)
            and (self.end_ms is None or dead_ms <= self.end_ms)
            and (self.cause is None or self.cause.casefold() in letter.cause.casefold())
        )


EVERYTHING: Final = Selection()


class DeadLetter(NamedTuple):
    """One dead letter of a group."""

    group: str
    message: ReceivedMessage

    @property
    def id(self) -> str:
        """The id of the dead letter itself: its broker and its position there."""
        return self.message.offset_id

    @property
    def ids(self) -> tuple[str, ...]:
        """Its ids: its own, the sender's, and that of the first delivery."""
        properties = self.message.properties
        first = properties.get(names.ORIGIN_MESSAGE_ID)
        return tuple(each for each in (self.id, self.message.message_id, first) if each)

    @property
    def topic(self) -> str | None:
        """The topic to which it was sent; None if unknown."""
        properties = self.message.properties
        return properties.get(names.RETRY_TOPIC) or properties.get("DLQ_ORIGIN_TOPIC")

    @property
    def cause(self) -> str:
        """The last exception of its handler; ``unknown`` if it carries none.

        Messages sent back by Java's consumers, or through Apache's brokers, carry none.
        """
        return str(self.message.last_failure or UNKNOWN_CAUSE)

    @property
    def dead_ms(self) -> int:
        """The time at which it became a dead letter, by the broker's clock."""
        return self.message.store_ms

    @property
    def resent_id(self) -> str:
        """The unique id of its resent copy; the same for every call that resends it.

        Sixteen bytes in hexadecimal digits, like other unique ids. The time since the start of the
        month is 0, because Java's tools search for a message from that time on.
        """
        name = f"{self.id} {self.message.store_ms} {self.message.message_id} {self.group}"
        digest = hashlib.sha256(name.encode()).digest()
        return (digest[:10] + bytes(4) + digest[10:12]).hex().upper()
