"""Topics: configuration, permission bits, and the version of a table."""

from __future__ import annotations

from typing import Final

import msgspec

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    """Version of a table; any difference means different contents."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the next version."""
        return DataVersion(self.counter + 1, self.state_version, now_ms)


class TopicConfig(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One topic on one broker. Members are declared in the order in which Java writes them."""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = PERM_READ | PERM_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    @property
    def readable(self) -> bool:
        """Whether consumers may read the topic."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """Whether producers may be routed to the topic."""
        return bool(self.perm & PERM_WRITE)


class TopicChange(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """A change of a topic; members that are None stay unchanged.

    Keys of ``attributes`` are signed: ``+name`` sets one and ``-name`` removes one.
    """

    attributes: dict[str, str] = {}
    order: bool | None = None
    perm: int | None = None
    read_queue_nums: int | None = None
    topic_filter_type: str | None = None
    topic_name: str = ""
    topic_sys_flag: int | None = None
    write_queue_nums: int | None = None


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ shows it, such as ``RW-``."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )
