"""The history of group members and their queues, in memory. Pure.

An entry says between which two looks a member was seen with a queue. Nothing is known about the
time between looks, so a change happened between the end of one stint and the beginning of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

GROUPS_MAX: Final = 200
QUEUES_MAX: Final = 256
STINTS_MAX: Final = 40
CHANGES_MAX: Final = 200
FLAP_MS: Final = 600_000
FLAP_CHANGES: Final = 4
"""Changes of a queue's owner within ten minutes from which on it is said to flap."""


class Stint(msgspec.Struct, kw_only=True, rename="camel"):
    """A member that held a queue: when it was seen with it first and last."""

    client: str
    begin_ms: int
    seen_ms: int


class MemberChange(NamedTuple):
    """A member that joined or left; seen at the look that noticed it."""

    at_ms: int
    kind: str
    client: str


class GroupHoldings:
    """The members of one group, and which of them held which queue."""

    __slots__ = ("changes", "members", "queues", "seen_ms")

    def __init__(self) -> None:
        self.members: frozenset[str] | None = None
        self.changes: deque[MemberChange] = deque(maxlen=CHANGES_MAX)
        self.queues: dict[str, list[Stint]] = {}
        self.seen_ms = 0

    def note_members(self, at_ms: int, members: Collection[str]) -> None:
        """Add the members that a look found; the first look is the beginning, no change."""
        now = frozenset(members)
        if self.members is not None:
            self.changes.extend(
                MemberChange(at_ms, "joined", each) for each in sorted(now - self.members)
            )
            self.changes.extend(
                MemberChange(at_ms, "left", each) for each in sorted(self.members - now)
            )
        self.members, self.seen_ms = now, at_ms

    def note_owners(self, at_ms: int, owners: Mapping[str, str]) -> None:
        """Add the owner of each queue. A queue that is not named has no owner now."""
        for queue, client in owners.items():
            stints = self.queues.get(queue)
            if stints is None:
                if len(self.queues) >= QUEUES_MAX:
                    continue
                stints = self.queues[queue] = []
            # A stint that ended before the last look is over, even if the same member is back.
            if stints and stints[-1].client == client and stints[-1].seen_ms >= self.seen_ms:
                stints[-1].seen_ms = at_ms
            else:
                stints.append(Stint(client=client, begin_ms=at_ms, seen_ms=at_ms))
                del stints[:-STINTS_MAX]

    def find_flapping(self, now_ms: int) -> list[str]:
        """Return the queues that changed hands often in the last ten minutes."""
        return sorted(
            queue
            for queue, stints in self.queues.items()
            if sum(1 for each in stints[1:] if each.begin_ms > now_ms - FLAP_MS) >= FLAP_CHANGES
        )


class Holdings:
    """The histories of groups, with a bound on their number. Belongs to the event loop."""

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._groups: dict[str, GroupHoldings] = {}

    def note(
        self, group: str, at_ms: int, members: Collection[str], owners: Mapping[str, str] | None
    ) -> None:
        """Add what a look at a group found.

        Args:
            group: The group.
            at_ms: The time of the look.
            members: Client ids of all members.
            owners: The owner of each queue; None if that is not known.
        """
        history = self._groups.pop(group, None)
        if history is None:
            if not members:
                return  # a group that nobody has ever joined has no history
            history = GroupHoldings()
            if len(self._groups) >= self._groups_max:
                del self._groups[next(iter(self._groups))]
        self._groups[group] = history  # the one looked at last is forgotten last
        if owners is not None:
            history.note_owners(at_ms, owners)
        history.note_members(at_ms, members)

    def find(self, group: str) -> GroupHoldings | None:
        """Return the history of a group, or None if nothing is remembered."""
        return self._groups.get(group)

    def find_flapping(self, now_ms: int) -> dict[str, list[str]]:
        """Return the groups with queues that flap, and these queues."""
        found = {name: each.find_flapping(now_ms) for name, each in self._groups.items()}
        return {name: queues for name, queues in sorted(found.items()) if queues}

    def keep(self, names: Collection[str]) -> None:
        """Forget other groups: they are gone."""
        for name in self._groups.keys() - set(names):
            del self._groups[name]
