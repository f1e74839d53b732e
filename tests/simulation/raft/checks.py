"""Properties of a group of Raft nodes, checked after every step from outside of the nodes.

The checks know all disks and all promises. They use what nodes do (messages, writes, cuts,
commits), never what nodes believe. The first five names are those of the Raft paper, figure 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rocketpost.raft.messages import Members

from .disk import Record

if TYPE_CHECKING:
    from .server import Server

ELECTION_SAFETY = "election safety"
LEADER_APPEND_ONLY = "leader append-only"
LOG_MATCHING = "log matching"
LEADER_COMPLETENESS = "leader completeness"
STATE_MACHINE_SAFETY = "state machine safety"
COMMIT_MONOTONE = "commit never goes back"
COMMITTED_KEPT = "no committed byte is removed"
DURABLE_MAJORITY = "a commit is durable on a majority"
OWN_TERM = "a leader commits by counting only in its own term"
TERM_RECORD = "a term begins with its term record"
VOTE_MAJORITY = "a majority votes for a leader"
VOTE_ONCE = "one vote per term"
PROMISE_DURABLE = "a promise is durable before it is sent"
UNFIT_SILENT = "a suspect or failed node neither votes nor leads"
QUORUM_CONTACT = "a leader without a majority steps down"
ONE_CHANGE = "one change of members at a time"
NO_DISRUPTION = "a returning node does not depose a leader"
LIVENESS = "a healthy group elects a leader and commits"
ACKNOWLEDGED_KEPT = "nothing acknowledged is lost"
CORE = "the node keeps its own rules"


class Violation(AssertionError):  # noqa: N818 - named after what is found
    """A property that does not hold, by the name of its check."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


class Checks:
    """What a group has promised so far, and whether each new step keeps it."""

    def __init__(self, servers: Mapping[str, Server], *, only: Iterable[str] = ()) -> None:
        self._servers = servers
        self._only = frozenset(only)
        self.leaders: dict[int, tuple[str, int]] = {}
        """Node and life of the leader of each term."""

        self.votes: dict[tuple[str, int], str] = {}
        """Candidate that a node has voted for in a term."""

        self.ballots: dict[tuple[int, str], set[str]] = {}
        """Nodes that have voted for a candidate in a term."""

        self.made: dict[tuple[int, int], Record] = {}
        """Record at each term and position."""

        self.commits: dict[int, Record] = {}
        """Newest record that was committed in each term."""

        self.committed: Record | None = None
        self.chain: dict[int, Record] = {}
        """Committed records by their ends."""

    def fail(self, check: str, text: str) -> None:
        """Report a violation, unless only other checks are wanted."""
        if not self._only or check in self._only:
            raise Violation(check, text)

    # -- elections

    def elected(self, server: Server, term: int) -> None:
        """Check a node that has just become the leader of a term."""
        life = (server.name, server.life)
        if self.leaders.setdefault(term, life) != life:
            self.fail(ELECTION_SAFETY, f"term {term} has {self.leaders[term]} and {life}")
        voters = server.members.voters
        votes = (self.ballots.get((term, server.name), set()) | {server.name}) & voters
        if 2 * len(votes) <= len(voters):
            self.fail(VOTE_MAJORITY, f"{votes} of {voters} made {server.name} lead term {term}")
        for earlier, record in self.commits.items():
            if earlier < term and not server.log.has(record):
                self.fail(
                    LEADER_COMPLETENESS,
                    f"node {server.name} leads term {term} without {record} of {earlier}",
                )
        if server.is_suspect or server.has_failed:
            self.fail(UNFIT_SILENT, f"node {server.name} leads term {term}")

    def voted(self, server: Server, term: int, candidate: str) -> None:
        """Check a vote that leaves a node, for another one or for itself."""
        self.ballots.setdefault((term, candidate), set()).add(server.name)
        key = (server.name, term)
        if self.votes.setdefault(key, candidate) != candidate:
            self.fail(
                VOTE_ONCE,
                f"node {server.name} votes in term {term} for {self.votes[key]} and {candidate}",
            )
        saved = server.saved_vote()
        if saved != (term, candidate):
            self.fail(
                PROMISE_DURABLE,
                f"node {server.name} votes for {candidate} in term {term} with {saved} on disk",
            )
        if server.is_suspect or server.has_failed:
            self.fail(UNFIT_SILENT, f"node {server.name} votes for {candidate} in term {term}")

    def forget_votes(self, name: str) -> None:
        """Forget the votes of a node that has lost them; elections must stay safe all the same."""
        for key in [key for key in self.votes if key[0] == name]:
            del self.votes[key]

    def acknowledged(self, server: Server, term: int, position: int) -> None:
        """Check a follower's answer that it has the log up to ``position``."""
        if position > server.safe_end:
            self.fail(
                PROMISE_DURABLE,
                f"node {server.name} acknowledges {position}, {server.safe_end} is safe",
            )
        if server.saved_vote()[0] < term:
            self.fail(
                PROMISE_DURABLE,
                f"node {server.name} answers in term {term}, which it has not saved",
            )

    # -- the log

    def wrote(self, server: Server, record: Record) -> None:
        """Check a record that a leader has made."""
        if self.made.setdefault((record.term, record.start), record) is not record:
            self.fail(LOG_MATCHING, f"{record} and {self.made[record.term, record.start]}")
        self.appended(server, record)

    def appended(self, server: Server, record: Record) -> None:
        """Check a record that a node is about to append to its log.

        A record knows the one before it. If each copy follows the same record as the original, then
        logs that share a record are equal up to it.
        """
        if record.before is not server.log.last:
            self.fail(
                LOG_MATCHING,
                f"node {server.name} puts {record} behind {server.log.last}, "
                f"its leader behind {record.before}",
            )

    def changed(self, leader: Server, members: Members) -> None:
        """Check a change of members that a leader is about to write."""
        changes = leader.log.changes
        if changes and changes[-1].end > leader.commit:
            self.fail(ONE_CHANGE, f"{leader.name} changes to {members}, {changes[-1]} is open")
        committed = leader.log.before(leader.commit)
        if committed is None or committed.term != leader.term:
            self.fail(ONE_CHANGE, f"{leader.name} has committed {committed} in term {leader.term}")
        if len(members.voters ^ leader.members.voters) > 1:
            self.fail(ONE_CHANGE, f"{leader.name} goes from {leader.members} to {members}")

    def cut(self, server: Server, position: int) -> None:
        """Check a log that is about to lose everything from ``position`` on."""
        if server.is_leader:
            self.fail(LEADER_APPEND_ONLY, f"node {server.name} leads and cuts at {position}")
        removed = server.log.between(position, server.log.end)
        if removed and self.chain.get(removed[0].end) is removed[0]:
            self.fail(COMMITTED_KEPT, f"node {server.name} removes {removed[0]}")

    def committed_to(self, server: Server, position: int) -> None:
        """Check a node that takes the log for committed up to ``position``."""
        if position < server.commit:
            self.fail(
                COMMIT_MONOTONE, f"node {server.name} goes from {server.commit} to {position}"
            )
        if position == 0:
            return
        record = server.log.before(position)
        if record is None:
            self.fail(STATE_MACHINE_SAFETY, f"node {server.name} lacks {position} and commits it")
            return
        if server.is_leader and position > server.commit:
            self._counted(server, record)
        if self.committed is None or record.end > self.committed.end:
            self._extend(server, record)
        elif self.chain.get(position) is not record:
            self.fail(
                STATE_MACHINE_SAFETY,
                f"node {server.name} commits {record}, another one {self.chain.get(position)}",
            )

    def _extend(self, server: Server, record: Record) -> None:
        if not server.log.has(self.committed):
            self.fail(
                STATE_MACHINE_SAFETY,
                f"node {server.name} commits {record} without {self.committed}",
            )
        walk: Record | None = record
        while walk is not None and self.chain.get(walk.end) is not walk:
            self.chain[walk.end] = walk
            walk = walk.before
        self.committed = record
        self.commits[server.term] = record
        for other in self._servers.values():
            if other.is_leader and other.term > server.term and not other.log.has(record):
                self.fail(
                    LEADER_COMPLETENESS,
                    f"node {other.name} leads term {other.term} without {record}, "
                    f"committed in term {server.term}",
                )

    def _counted(self, leader: Server, record: Record) -> None:
        if record.term != leader.term:
            self.fail(
                OWN_TERM, f"node {leader.name} commits {record} as leader of term {leader.term}"
            )
        voters = leader.members.voters
        holders = [
            name
            for name in sorted(voters)
            if name in self._servers and self._servers[name].keeps(record)
        ]
        if 2 * len(holders) <= len(voters):
            self.fail(
                DURABLE_MAJORITY,
                f"node {leader.name} commits {record}; of {sorted(voters)} {holders} have it",
            )
