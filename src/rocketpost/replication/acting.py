"""Groups in which the smallest slave acts for a lost master: who acts, and how a broker starts.

Two machines decide, each for one broker of such a group. They get facts and return steps for the
caller to perform.

:class:`Duties` follows the members of the group. A slave acts while it has the smallest id of all
members that are alive, and stands back when a smaller id is there.

:class:`PreOnline` prepares a broker before it registers, one step at a time:

    master   for each slave in ascending order: Tell it where the master is, AwaitLink until it
             follows, TakeBack the offsets that consumers committed there; then GoOnline
    slave    Ask the master for its address, AwaitLink until it follows; then GoOnline
    neither  no other member is there, or no master: GoOnline at once

A step that fails is tried again after a pause, with members that are looked up again. A member
that fails too often is not waited for any longer, since one broken slave must not keep its master
offline; the reason is in ``problems``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.model.route import MASTER_ID

TRIES_MAX: Final = 5
LINK_MS: Final = 10_000
RETRY_MS: Final = 1000


class Act(NamedTuple):
    """Serve what only masters serve, as far as it writes nothing to the log."""


class StandBack(NamedTuple):
    """Serve what slaves serve: a smaller id is there."""


class FollowMaster(NamedTuple):
    """Follow the master, which is there again or has another address.

    Args:
        address: Where it serves requests.
        ha_address: Where it sends its log; empty if unknown.
    """

    address: str
    ha_address: str


Duty = Act | StandBack | FollowMaster


class Duties:
    """The duties of one broker among the members of its group. Belongs to the loop thread.

    Args:
        broker_id: The broker's id; 0 is the master.
        address: Its address.
    """

    def __init__(self, *, broker_id: int, address: str) -> None:
        self._own_id = broker_id
        self._own_address = address
        self._members: dict[int, str] = {}
        self.min_id = MASTER_ID
        """The smallest id of the members; 0 until they are known."""
        self.min_address = ""
        self.is_acting = False

    @property
    def alive(self) -> int:
        """Number of members that are alive, this one included."""
        return len(self._members.keys() | {self._own_id})

    @property
    def others(self) -> list[str]:
        """The addresses of the other members that are alive."""
        return [address for key, address in self._members.items() if key != self._own_id]

    def take_members(self, members: Mapping[int, str]) -> list[Duty]:
        """Take the members that a name server knows; return what changes.

        An empty answer changes nothing: a name server that has just started knows no member yet.
        """
        if not members:
            return []
        self._members = dict(members)
        known = {self._own_id: self._own_address, **members}
        smallest = min(known)
        return self._change(smallest, known[smallest], "")

    def take_notice(self, min_id: int, min_address: str, ha_address: str = "") -> list[Duty]:
        """Take a name server's notice of the smallest id; return what changes.

        Args:
            min_id: The smallest id now.
            min_address: The address of that member.
            ha_address: Where that member sends its log; empty if unknown.
        """
        if min_id > self._own_id:
            return []  # it does not know this broker yet, or no longer; the next look decides
        self._members = {key: value for key, value in self._members.items() if key >= min_id}
        self._members[min_id] = min_address
        return self._change(min_id, min_address, ha_address)

    def _change(self, min_id: int, address: str, ha_address: str) -> list[Duty]:
        is_same = (min_id, address) == (self.min_id, self.min_address)
        self.min_id, self.min_address = min_id, address
        if self._own_id == MASTER_ID:
            return []
        duties: list[Duty] = []
        acts = min_id == self._own_id
        if acts != self.is_acting:
            self.is_acting = acts
            duties.append(Act() if acts else StandBack())
        if min_id == MASTER_ID and address and not is_same:
            duties.append(FollowMaster(address, ha_address))
        return duties


class Look(NamedTuple):
    """Ask a name server for the members of the group, after a pause."""

    pause_ms: int


class Tell(NamedTuple):
    """Tell a slave where its master is."""

    address: str


class Ask(NamedTuple):
    """Ask the master where it sends its log."""

    address: str


class AwaitLink(NamedTuple):
    """Wait until a slave follows its master."""

    address: str
    timeout_ms: int


class TakeBack(NamedTuple):
    """Take the offsets that consumers committed at a slave."""

    address: str


class GoOnline(NamedTuple):
    """Register, and serve."""


Step = Look | Tell | Ask | AwaitLink | TakeBack | GoOnline


class PreOnline:
    """The steps of one broker before it goes online. Belongs to the loop thread.

    Args:
        broker_id: The broker's id; 0 is the master.
        tries_max: Number of times that a member may fail.
        link_ms: The time that a slave has to follow.
        retry_ms: The pause after a failure.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        tries_max: int = TRIES_MAX,
        link_ms: int = LINK_MS,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._own_id = broker_id
        self._tries_max = tries_max
        self._link_ms = link_ms
        self._retry_ms = retry_ms
        self._members: dict[int, str] = {}
        self._done: set[int] = set()
        self._failures: dict[int, int] = {}
        self.step: Step = Look(0)
        """The step to perform now."""
        self.problems: dict[int, str] = {}
        """Why members were not waited for any longer, by id."""

    @property
    def member(self) -> int:
        """Id of the member that the step concerns."""
        return self._pending()[0]

    def take_members(self, members: Mapping[int, str]) -> None:
        """Take the members that a name server knows."""
        assert isinstance(self.step, Look)
        self._members = {key: value for key, value in members.items() if key != self._own_id}
        self._begin_member()

    def succeed(self) -> None:
        """Note that the step is done; for ``Look`` use :meth:`take_members`."""
        match self.step:
            case Tell(address) | Ask(address):
                self.step = AwaitLink(address, self._link_ms)
            case AwaitLink(address) if self._own_id == MASTER_ID:
                self.step = TakeBack(address)
            case _:
                self._end_member()

    def fail(self, reason: str) -> None:
        """Note that the step failed; the members are looked up again before the next try."""
        if not isinstance(self.step, Look):
            member = self.member
            self._failures[member] = self._failures.get(member, 0) + 1
            if self._failures[member] >= self._tries_max:
                self.problems[member] = reason
                if isinstance(self.step, AwaitLink):
                    self.succeed()  # its offsets are there even if it does not follow
                else:
                    self._end_member()
                return
        self.step = Look(self._retry_ms)

    def _pending(self) -> list[int]:
        members = self._members if self._own_id == MASTER_ID else self._members.keys() & {MASTER_ID}
        return sorted(set(members) - self._done)

    def _begin_member(self) -> None:
        pending = self._pending()
        if not pending:
            self.step = GoOnline()
            return
        address = self._members[pending[0]]
        self.step = Tell(address) if self._own_id == MASTER_ID else Ask(address)

    def _end_member(self) -> None:
        self._done.add(self.member)
        self._begin_member()
