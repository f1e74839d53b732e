"""A dead letter as a value, and which of them are meant. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Final, NamedTuple

from rocketpost.client.message import ReceivedMessage
from rocketpost.model import properties as names

UNKNOWN_CAUSE: Final = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant: those that meet every condition; all if there is none.

    Attributes:
        ids: Any of the ids of :attr:`DeadLetter.ids`.
        keys: Words that messages carry; one of them is enough.
        topic: The topic that they were sent to.
        begin_ms: Dead since then or later.
        end_ms: Dead since then or earlier.
        cause: A part of :attr:`DeadLetter.cause`, in any case.
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
        """What it can be called: by its own id, by the sender's, by that of the first delivery."""
        properties = self.message.properties
        first = properties.get(names.ORIGIN_MESSAGE_ID)
        return tuple(each for each in (self.id, self.message.message_id, first) if each)

    @property
    def topic(self) -> str | None:
        """The topic that it was sent to; None if it does not say."""
        properties = self.message.properties
        return properties.get(names.RETRY_TOPIC) or properties.get("DLQ_ORIGIN_TOPIC")

    @property
    def cause(self) -> str:
        """Why it is dead: what its handler raised last, ``unknown`` if it does not say.

        Messages that Java's consumers, or ours by way of Apache's brokers, sent back do not.
        """
        return str(self.message.last_failure or UNKNOWN_CAUSE)

    @property
    def dead_ms(self) -> int:
        """Since when it is dead, by the broker's clock."""
        return self.message.store_ms

    @property
    def resent_id(self) -> str:
        """The unique id that its re-sent copy has: the same one, whoever sends it and when.

        Sixteen bytes in hexadecimal digits, as other unique ids. Where those have the time since
        the month began stands 0: Java's tools look for a message from that time on.
        """
        name = f"{self.id} {self.message.store_ms} {self.message.message_id} {self.group}"
        digest = hashlib.sha256(name.encode()).digest()
        return (digest[:10] + bytes(4) + digest[10:12]).hex().upper()
