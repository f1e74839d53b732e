"""Values out of fuzz bytes: the same bytes give the same values, with or without a fuzzer.

Like Atheris' ``FuzzedDataProvider``, in plain Python, so that a saved input can be replayed by an
ordinary test. A supply that ran dry gives zeros, so every input means something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

INTERESTING: Final = (
    *("", "0", "1", "-1", "7", "8", "65536", "2147483647", "2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 30),
    *("1e3", "0x10", "٣", "²", "--1", "+5", " 5 ", "1_0", "nan", "inf", "true", "false", "null"),
    *("*", "A || B", "../../etc/passwd", "a/b", "..", ".", "/tmp/x", "C:\\x", "a\nb", "\r\n"),
    *("%s%n", "$(id)", "`id`", ";id", "\x00", "\x01", "\x02", "@", "A@B", "é" * 200, "x" * 300),
    *("%RETRY%", "%DLQ%", "%RETRY%%RETRY%g", "|", "-", "\ufeff", "\U0001f600", "\x1b[2J"),
)
"""Texts that have broken parsers before."""


class Supply:
    """Hands out values from ``data``, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """Return the next byte, 0 when there is none."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def number(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``; ``low`` if that is nothing."""
        if high <= low:
            return low
        span, value = high - low, 0
        while span:
            value = value << 8 | self.byte()
            span >>= 8
        return low + value % (high - low + 1)

    def chance(self, one_in: int) -> bool:
        """Return True about once in ``one_in`` times; never when the bytes are used up."""
        return self.left > 0 and self.byte() % one_in == one_in - 1

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``."""
        return items[self.number(0, len(items) - 1)]

    def raw(self, most: int = 1 << 16) -> bytes:
        """Return some of the bytes as they are."""
        size = min(self.number(0, most) if most < 256 else self.number(0, 255), self.left)
        return self._take(size)

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self._take(self.left)

    def text(self, known: Sequence[str] = ()) -> str:
        """Return one of the ``known`` texts, an interesting one, or something never seen."""
        kind = self.byte() % 8
        if kind < 4 and known:
            return self.pick(known)
        if kind < 6:
            return self.pick(INTERESTING)
        return self.raw(64).decode("utf-8", "replace")

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken
