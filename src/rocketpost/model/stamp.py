"""Stamps: producer and sequence of a message, by which a broker stores it once.

    epoch:sequence:producer            the property of a stored message
    epoch:sequence:after:producer      the header field of a send; ``after`` may be empty

The producer's id comes last because it may contain colons.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

PRODUCER_ID_MAX: Final = 128
NUMBER_MAX: Final = 2**63 - 2
_DIGITS_MAX: Final = 19


class Stamp(NamedTuple):
    """One message of one producer. Equal stamps mean the same message."""

    producer_id: str
    epoch: int
    sequence: int

    def to_property(self) -> str:
        """Return the value of the stored property."""
        return f"{self.epoch}:{self.sequence}:{self.producer_id}"

    def to_field(self, after: int | None = None) -> str:
        """Return the header field of a send; the sequence ``after`` must be stored first."""
        return f"{self.epoch}:{self.sequence}:{'' if after is None else after}:{self.producer_id}"

    def plus(self, count: int) -> Stamp:
        """Return the stamp ``count`` messages later."""
        return Stamp(self.producer_id, self.epoch, self.sequence + count)


def parse_property(text: str) -> Stamp:
    """Read the value of the stored property.

    Raises:
        ValueError: The text is malformed.
    """
    epoch, sequence, producer_id = _pieces(text, 3)
    return _make_stamp(producer_id, epoch, sequence)


def parse_field(text: str) -> tuple[Stamp, int | None]:
    """Read the header field of a send: the stamp of its first message, and ``after``.

    Raises:
        ValueError: The text is malformed; the error says why.
    """
    epoch, sequence, after, producer_id = _pieces(text, 4)
    return _make_stamp(producer_id, epoch, sequence), _number("after", after) if after else None


@lru_cache(maxsize=1024)
def producer_id_problem(producer_id: str) -> str | None:
    """Return why ``producer_id`` is not allowed, or None."""
    if not 0 < len(producer_id) <= PRODUCER_ID_MAX:
        return f"a producer id has 1 to {PRODUCER_ID_MAX} characters, not {len(producer_id)}"
    if not (producer_id.isascii() and producer_id.isprintable()) or " " in producer_id:
        return f"the producer id {producer_id!r} has characters other than visible ASCII"
    return None


def _pieces(text: str, count: int) -> list[str]:
    pieces = text.split(":", count - 1)
    if len(pieces) != count:
        raise ValueError(f"{text[:PRODUCER_ID_MAX]!r} is not a producer's sequence")
    return pieces


def _make_stamp(producer_id: str, epoch: str, sequence: str) -> Stamp:
    if problem := producer_id_problem(producer_id):
        raise ValueError(problem)
    return Stamp(producer_id, _number("epoch", epoch), _number("sequence", sequence))


def _number(what: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        number = int(text)
        if number <= NUMBER_MAX:
            return number
    raise ValueError(f"the {what} {text[:_DIGITS_MAX]!r} is not a number from 0 to {NUMBER_MAX}")
