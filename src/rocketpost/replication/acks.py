"""The slaves of a master, and how much of the log each of them has.

Replicas are counted, not connections: a slave whose network broke has a second connection before
the master notices the end of the first, and must not count twice.

Slaves of ours introduce themselves, so their broker id is known. Other slaves have no identity;
several may run on one host.

Invariants:

- A broker id counts once, with its youngest connection. A restarted slave may have less than it
  acknowledged before, so an older connection says nothing about it.
- A connection without a broker id counts only by a report that arrived at least ``settle_ms`` after
  each younger connection from its host. A dead connection sends no such report; those that were
  still waiting to be read come earlier.
- A connection that has not reported, or whose slave cannot be served, does not count.
- Positions of one connection never fall.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from rocketpost.errors import ReplicationError

SETTLE_MS: Final = 1000
POSITION_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class _Connection:
    number: int
    host: str
    broker_id: int | None
    connected_ms: int
    heard_ms: int
    position: int = 0
    counts: bool = False


class ReplicaAcks:
    """Counts the slaves that have the log up to a position. Belongs to the loop thread."""

    def __init__(self, *, settle_ms: int = SETTLE_MS) -> None:
        self._settle_ms = settle_ms
        self._connections: dict[Hashable, _Connection] = {}
        self._numbers = 0
        self._positions: list[int] = []

    def add(self, connection_id: Hashable, host: str, broker_id: int | None, now_ms: int) -> None:
        """Add a connection.

        Args:
            connection_id: Identifies the connection.
            host: Address of the slave, without its port.
            broker_id: The slave's broker id, if it has introduced itself.
            now_ms: The time, here and in the other calls; it never goes back.
        """
        assert connection_id not in self._connections
        self._numbers += 1
        new = _Connection(self._numbers, host, broker_id, now_ms, now_ms)
        for old in self._connections.values():
            if _may_be_same(old, new):
                old.counts = False
        self._connections[connection_id] = new
        self._count()

    def report(
        self, connection_id: Hashable, position: int, now_ms: int, *, is_stuck: bool = False
    ) -> None:
        """Note that the slave of a connection has the log up to ``position``.

        Args:
            connection_id: The connection.
            position: ``LogSender.acked``, not the bare report: a slave that is ahead of its master
                has acknowledged nothing.
            now_ms: The time.
            is_stuck: Whether the slave cannot be served; then it does not count.

        Raises:
            ReplicationError: It has less than it had; close the connection.
        """
        connection = self._connections[connection_id]
        connection.heard_ms = now_ms
        if position < connection.position:
            raise ReplicationError(
                f"the slave at {connection.host} has {position} after {connection.position}"
            )
        counts = not is_stuck and (connection.counts or self._is_alive(connection, now_ms))
        if counts != connection.counts or position != connection.position:
            connection.counts, connection.position = counts, position
            self._count()

    def remove(self, connection_id: Hashable) -> None:
        """Remove a connection; one that is not known is ignored."""
        if self._connections.pop(connection_id, None) is not None:
            self._count()

    def position_of(self, replicas: int) -> int:
        """Return the highest position that this many slaves have; 0 if there are fewer slaves."""
        if replicas <= 0:
            return POSITION_MAX
        return self._positions[replicas - 1] if replicas <= len(self._positions) else 0

    def in_sync(self, end: int, gap_bytes: int) -> int:
        """Return the number of slaves that are less than ``gap_bytes`` behind ``end``."""
        return sum(end - position < gap_bytes for position in self._positions)

    def silent(self, now_ms: int, limit_ms: int) -> list[Hashable]:
        """Return the connections without a report for longer than ``limit_ms``; close them."""
        return [
            connection_id
            for connection_id, connection in self._connections.items()
            if now_ms - connection.heard_ms > limit_ms
        ]

    def _is_alive(self, connection: _Connection, now_ms: int) -> bool:
        """Tell whether a report of now shows that no younger connection replaced this one."""
        younger = [
            other
            for other in self._connections.values()
            if other.number > connection.number and _may_be_same(other, connection)
        ]
        if connection.broker_id is not None:
            return not younger
        return all(now_ms - other.connected_ms >= self._settle_ms for other in younger)

    def _count(self) -> None:
        counting = [each for each in self._connections.values() if each.counts]
        ids = [each.broker_id for each in counting if each.broker_id is not None]
        assert len(ids) == len(set(ids)), "a broker id counts once"
        self._positions = sorted((each.position for each in counting), reverse=True)


def _may_be_same(one: _Connection, other: _Connection) -> bool:
    """Tell whether two connections may belong to the same slave."""
    if one.broker_id is None or other.broker_id is None:
        return one.broker_id is other.broker_id and one.host == other.host
    return one.broker_id == other.broker_id
