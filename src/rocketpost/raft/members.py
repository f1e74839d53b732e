"""The configurations of a group, as records in its log.

A member uses the newest configuration in its log, committed or not (Raft thesis, 4.1). If the log
is cut before the record, the configuration before it is valid again.

Invariants:

- Positions of records ascend strictly.
- A configuration differs from the one before it in one member, and in at most one voter, so that
  any two majorities of the two have a voter in common.
- No member is voter and learner at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rocketpost.errors import ReplicationError
from rocketpost.raft.messages import MemberRecord, Members, NodeId

NOBODY = Members(frozenset())
"""Configuration of a node that has not joined a group yet."""


class ChangeKind(Enum):
    """Ways to change a configuration by one member."""

    ADD_LEARNER = "add learner"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A change of one member."""

    kind: ChangeKind
    node: NodeId

    def apply(self, members: Members) -> Members:
        """Return the changed configuration.

        Raises:
            ReplicationError: The change makes no sense for these members.
        """
        voters, learners = members
        node = frozenset({self.node})
        if self.kind is ChangeKind.ADD_LEARNER:
            if node <= voters | learners:
                raise ReplicationError(f"{self.node} is a member already")
            return Members(voters, learners | node)
        if self.kind is ChangeKind.PROMOTE:
            if not node <= learners:
                raise ReplicationError(f"{self.node} is no learner; add it as a learner first")
            return Members(voters | node, learners - node)
        if not node <= voters | learners:
            raise ReplicationError(f"{self.node} is no member")
        if voters == node:
            raise ReplicationError(f"{self.node} is the only voter; promote another member first")
        return Members(voters - node, learners - node)


class MemberTable:
    """Configurations of one log. Belongs to the node."""

    def __init__(self, records: Iterable[MemberRecord] = ()) -> None:
        self._records: list[MemberRecord] = []
        self.latest = NOBODY
        """The valid configuration."""
        self.latest_position = 0
        """End of the newest record; 0 if there is none."""
        for record in records:
            self.add(record)

    @property
    def records(self) -> tuple[MemberRecord, ...]:
        """All records."""
        return tuple(self._records)

    def add(self, record: MemberRecord) -> None:
        """Add a record whose position is after all others."""
        assert not self._records or record.position > self._records[-1].position
        assert not record.members.voters & record.members.learners
        self._records.append(record)
        self._note_latest()

    def cut(self, position: int) -> None:
        """Forget records that end after a position."""
        del self._records[self._count_to(position) :]
        self._note_latest()

    def trim(self, first: int) -> None:
        """Forget records whose configuration was replaced at or before a position."""
        drop = self._count_to(first) - 1
        if drop > 0:
            del self._records[:drop]

    def between(self, start: int, end: int) -> tuple[MemberRecord, ...]:
        """Return the records that end in ``(start, end]``."""
        if start >= self.latest_position:
            return ()
        return tuple(self._records[self._count_to(start) : self._count_to(end)])

    def at(self, position: int) -> MemberRecord:
        """Return the record that is valid at a position."""
        count = self._count_to(position)
        return self._records[count - 1] if count else MemberRecord(0, NOBODY)

    def _note_latest(self) -> None:
        last = self._records[-1] if self._records else MemberRecord(0, NOBODY)
        self.latest_position, self.latest = last

    def _count_to(self, position: int) -> int:
        return bisect_right(self._records, position, key=lambda record: record.position)
