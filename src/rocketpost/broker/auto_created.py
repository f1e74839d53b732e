"""Topics or groups created by use: limits on their rate and share, and a list of unused ones.

Any client that reaches the port can create topics by sending and groups by pulling. Both have a
creation rate, for each host and in total, and a share of the table that leaves room for
administrators. A name stays listed here, with its creation time, until it is in use. Names that
stay unused are deleted (``broker.expiry``, ADR 0054).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import StoreError
from rocketpost.model.clock import Clock

PER_SECOND: Final = 10
"""Number that may be created per second in the long run."""
_BURST_SECONDS: Final = 200
_HOST_SHARE: Final = 0.5
"""Share of the rate that one host may use."""
_HOSTS_MAX: Final = 4096
_TABLE_SHARE: Final = 0.75


class _Bucket:
    """Tokens that accumulate over time, up to a burst."""

    __slots__ = ("at_ms", "tokens")

    def __init__(self, tokens: float, at_ms: int) -> None:
        self.tokens = tokens
        self.at_ms = at_ms

    def fill(self, now_ms: int, rate: float) -> None:
        elapsed_ms = max(0, now_ms - self.at_ms)  # the clock may be set back
        self.at_ms = now_ms
        self.tokens = min(rate * _BURST_SECONDS, self.tokens + elapsed_ms * rate / 1000)


class AutoCreated:
    """Topics, or groups, that were created by use. Owned by the event loop.

    Args:
        kind: The kind of name, for refusals: ``topic`` or ``group``.
        per_second: Names that may be created per second in the long run; 0 for no limit.
    """

    def __init__(self, kind: str, *, clock: Clock, per_second: int = PER_SECOND) -> None:
        self._kind = kind
        self._clock = clock
        self.per_second = per_second
        self._unused: dict[str, int] = {}
        self._all = _Bucket(per_second * _BURST_SECONDS, clock.now_ms())
        self._hosts: OrderedDict[str, _Bucket] = OrderedDict()
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    @property
    def unused(self) -> Mapping[str, int]:
        """Creation time of each name that is not in use yet, oldest first."""
        return self._unused

    def admit(self, name: str, by: str, *, count: int, count_max: int) -> None:
        """Note that a name is created by use.

        Args:
            name: The name.
            by: The client that uses it: ``host:port``, and maybe more after a blank.
            count: Number of names in the table.
            count_max: Number of names that the table may hold.

        Raises:
            SystemBusy: There are too many, or too many are being created.
        """
        if count >= count_max * _TABLE_SHARE:
            raise SystemBusy(
                f"[OVERLOAD]this broker has {count} {self._kind}s and creates no more "
                f"automatically; delete unused ones or create the {self._kind} {name} with mqadmin"
            )
        if self.per_second and not self._take(by.partition(" ")[0].rpartition(":")[0]):
            raise SystemBusy(
                f"[OVERLOAD]too many {self._kind}s are being created, so {name} was not; try again "
                "in a moment, create it with mqadmin, or raise autoCreatePerSecond"
            )
        self._unused[name] = self._clock.now_ms()
        self.revision += 1

    def remove(self, name: str) -> None:
        """Remove a name from this list: it is in use, or was deleted."""
        if self._unused.pop(name, None) is not None:
            self.revision += 1

    def follow(self, data: bytes) -> None:
        """Apply the list of the master, as :meth:`to_json` returns it.

        Raises:
            StoreError: The text is not such a list.
        """
        unused = self._decode(data)
        if unused != self._unused:
            self._unused = unused
            self.revision += 1

    def to_json(self) -> bytes:
        """Return the text to save."""
        return msgspec.json.encode(self._unused)

    def load(self, data: bytes) -> None:
        """Load the table from its file.

        Raises:
            StoreError: The text is not such a table.
        """
        self._unused.update(self._decode(data))

    def _decode(self, data: bytes) -> dict[str, int]:
        try:
            return msgspec.json.decode(data, type=dict[str, int])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"the list of {self._kind}s created by use cannot be read: {error}"
            ) from None

    def _take(self, host: str) -> bool:
        now_ms = self._clock.now_ms()
        self._all.fill(now_ms, self.per_second)
        rate = self.per_second * _HOST_SHARE
        bucket = self._hosts.pop(host, None) or _Bucket(rate * _BURST_SECONDS, now_ms)
        self._hosts[host] = bucket  # now the last one to be evicted
        if len(self._hosts) > _HOSTS_MAX:
            self._hosts.popitem(last=False)
        bucket.fill(now_ms, rate)
        if bucket.tokens < 1 or self._all.tokens < 1:
            return False
        bucket.tokens -= 1
        self._all.tokens -= 1
        return True
