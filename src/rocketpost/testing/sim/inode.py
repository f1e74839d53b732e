"""A simulated file: what programs see of it, and what a power cut would leave of it."""

from __future__ import annotations

import random
from typing import Final, Protocol

from rocketpost.store.files import Buffer

PAGE: Final = 512
"""The smallest piece that reaches a disk whole."""
_BLOCK: Final = 64 * 1024
_ZEROS: Final = bytes(_BLOCK)


class Hash(Protocol):
    """A checksum, as ``hashlib`` makes them."""

    def update(self, data: Buffer, /) -> None:
        """Add bytes."""


class Inode:
    """A file, with or without a name: its contents as programs see them, and those on disk."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.size = 0
        self.durable = bytearray()
        self.lost: set[int] = set()  # pages that a failed sync dropped from the dirty ones
        self.modified_ms = 0
        self.is_mapped = False
        """Whether programs may change it through a map, unseen."""
        self._written: list[tuple[int, int]] = []  # ranges written since the last sync

    def content(self) -> bytes:
        """Return what programs see."""
        return bytes(memoryview(self.buffer)[: self.size])

    def update(self, found: Hash) -> None:
        """Add the contents to a checksum. Blocks of zeros count by their number, which is fast."""
        zeros = 0
        for begin in range(0, self.size, _BLOCK):
            block = self.buffer[begin : min(begin + _BLOCK, self.size)]
            if _ZEROS.startswith(block):
                zeros += len(block)
            else:
                found.update(b"%d:" % zeros)
                found.update(block)
                zeros = 0
        found.update(b"%d;" % zeros)

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        if size < self.size:
            self._written.append((size, self.size))
            self.buffer[size : self.size] = bytes(self.size - size)
            self.lost = {page for page in self.lost if page < size // PAGE}
        elif size > len(self.buffer):
            # Maps of the smaller file keep the old memory, so nothing is mapped before it is whole.
            old, self.buffer = self.buffer, bytearray(size)
            self.buffer[: len(old)] = old
        self.size = size

    def write(self, data: Buffer, offset: int) -> None:
        """Write to the page cache."""
        end = offset + len(data)
        if end > self.size:
            self.resize(end)
        self.buffer[offset:end] = data
        self._written.append((offset, end))
        if self.lost:
            self.lost.difference_update(range(offset // PAGE, -(-end // PAGE)))

    def sync(self) -> None:
        """Make everything durable, except pages that a failed sync has dropped."""
        kept = {page: self.durable[page * PAGE : (page + 1) * PAGE] for page in sorted(self.lost)}
        self._resize_durable(self.size)
        for begin, end in self._changed_ranges():
            end = min(end, self.size)
            self.durable[begin:end] = self.buffer[begin:end]
        for page, old in kept.items():
            at = page * PAGE
            size = max(0, min(PAGE, self.size - at))
            self.durable[at : at + size] = old.ljust(PAGE, b"\0")[:size]
        self._written.clear()

    def dirty_pages(self) -> list[int]:
        """Return the numbers of the pages that differ from those on disk."""
        pages: set[int] = set()
        for begin, end in self._changed_ranges():
            pages.update(range(begin // PAGE, -(-end // PAGE)))
        return [page for page in sorted(pages) if self._page(page) != self._durable_page(page)]

    def after_power_cut(self, rng: random.Random, keep: float) -> Inode:
        """Return the file as a power cut may leave it, each dirty page new with chance ``keep``."""
        old_size = len(self.durable)
        size = self.size if self.size == old_size or rng.random() < keep else old_size
        left = self.durable[:size]
        if len(left) < size:
            left.extend(bytes(size - len(left)))
        for page in self.dirty_pages():
            if page not in self.lost and rng.random() < keep:
                at = page * PAGE
                part = self._page(page)[: max(0, size - at)]
                left[at : at + len(part)] = part
        return self._settled(left)

    def after_kill(self) -> Inode:
        """Return the file with all that was written to it, durable."""
        return self._settled(self.buffer[: self.size])

    def _settled(self, content: bytearray) -> Inode:
        inode = Inode()
        inode.buffer = content
        inode.size = len(content)
        inode.durable = bytearray(content)
        inode.modified_ms = self.modified_ms
        return inode

    def _changed_ranges(self) -> list[tuple[int, int]]:
        return [(0, self.size)] if self.is_mapped else self._written

    def _resize_durable(self, size: int) -> None:
        if size < len(self.durable):
            del self.durable[size:]
        elif not self.durable:
            self.durable = bytearray(size)
        else:
            self.durable.extend(bytes(size - len(self.durable)))

    def _page(self, page: int) -> bytes:
        at = page * PAGE
        return bytes(self.buffer[at : min(at + PAGE, self.size)]).ljust(PAGE, b"\0")

    def _durable_page(self, page: int) -> bytes:
        return bytes(self.durable[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0")
