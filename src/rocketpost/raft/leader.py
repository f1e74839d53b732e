"""A leader's work: ship the log to every peer, count acknowledgements, commit, hand over.

Invariants:

- A leader never cuts its log.
- Its own bytes count only once they are persisted, like those of every voter.
- It commits by counting only up to positions after the first byte of its own term; bytes of
  earlier terms become committed with them (Raft, 5.4.2 and figure 8). So it writes a term record.
- It leads only while it hears a majority: after ``election_ticks`` without one it steps down.
- At most one change of members is uncommitted, and none begins before a byte of its own term is
  committed. It uses a configuration from the moment it is written.
- A leader that is no voter any more counts for nothing, and steps down when that is committed.

A message costs the same for few bytes as for many. So new bytes may gather (``gather_bytes`` and
``spare_bytes`` of the configuration): while a follower is busy with those before them, and for a
follower that is not *urgent*, for at most one tick. Urgent are the voters that have most of the log
and are enough to commit.
"""

from __future__ import annotations

from typing import Final

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import PauseWrites, ResumeWrites, Ship, WriteMembers, WriteTermRecord
from rocketpost.raft.core import Core
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    MemberRecord,
    Members,
    NodeId,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
)
from rocketpost.raft.progress import Pace, Progress
from rocketpost.raft.quorum import has_majority, majority, majority_position

SPANS_MAX: Final = 1000
"""Most terms that one message states."""
MEMBERS_MAX: Final = 16
"""Most configurations that one message states."""


class Leader:
    """State of one term of leading. Belongs to the node.

    Attributes:
        progress: The leader's view of each peer: how much it has, and what it is sent.
        transferring: The voter that is to take over; None if none is.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._log = core.log
        self.progress: dict[NodeId, Progress] = {}
        self.transferring: NodeId | None = None
        self._transfer_end = 0
        self._beat = core.now
        self._proposed: Members | None = None
        self._urgent: frozenset[NodeId] = core.members.voters

    @property
    def has_committed(self) -> bool:
        """Whether a byte of the leader's own term is committed."""
        return self._log.terms.term_before(self._log.commit) == self._core.term

    @property
    def is_removed(self) -> bool:
        """Whether the group has agreed that this member is no voter."""
        members = self._log.members
        if self._core.node in members.latest.voters:  # nearly always
            return False
        return members.latest_position <= self._log.commit

    @property
    def awaits_flush(self) -> bool:
        """Whether more is committed as soon as more of the leader's own log is persisted."""
        return self._may_commit_behind(self._log.persisted)

    @property
    def hears_majority(self) -> bool:
        """Whether a majority of the voters was heard within an election time-out.

        Suspect voters count here: they follow this leader, and elect no other. Otherwise the
        leader of a suspect and a lost member would step down before it has repaired the first.
        """
        since = self._core.now - self._core.config.election_ticks
        active = {peer for peer, progress in self.progress.items() if progress.heard > since}
        return has_majority(self._core.members.voters, active | {self._core.node})

    def begin(self) -> None:
        """Write the term record, and send a first message to every peer."""
        assert self._core.saved == self._core.number, "a leader's vote for itself is saved"
        self._core.do(WriteTermRecord(self._core.term))
        self._meet_peers()

    def tick(self) -> None:
        """Send heartbeats that are due, and bytes that gather; give up a slow handover.

        The commit position is sent with the next bytes, or at the next tick if there are none.
        """
        if self.transferring is not None and self._core.now >= self._transfer_end:
            self._give_up_transfer()
        is_due = self._core.now - self._beat >= self._core.config.heartbeat_ticks
        if is_due:
            self._beat = self._core.now
        self._choose_urgent()
        for peer, progress in self.progress.items():
            silence = self._core.now - progress.heard
            progress.is_silent = silence >= self._core.config.election_ticks
            self._pump(peer)
            if is_due or progress.told < self._log.commit:
                self._compare(peer)

    # The log.

    def grew(self, end: int, members: Members | None) -> None:
        """Ship the written bytes; ``members`` were stated by the record that ends at ``end``."""
        assert end > self._log.end
        records = []
        if members is not None:
            assert members == self._proposed, "members that were not proposed"
            self._proposed = None
            records.append(MemberRecord(end, members))
        self._log.extend(end, [TermSpan(self._core.term, self._log.end)], records)
        if members is not None:
            self._meet_peers()
        for peer in self.progress:
            self._pump(peer, may_gather=True)

    def shipped(self, ship: Ship, end: int) -> None:
        """Continue after the bytes that were sent."""
        progress = self.progress.get(ship.peer)
        if progress is None or progress.ship is not ship:
            return
        assert ship.start < end <= ship.end
        progress.ship = None
        progress.next = max(progress.next, end)
        if progress.next < self._log.end:
            self._pump(ship.peer, may_gather=True)

    def count(self) -> None:
        """Commit up to the position that a majority has."""
        position = majority_position(self._core.members.voters, self._counted)
        if position <= self._log.commit:
            return
        if self._log.terms.term_before(position) == self._core.term:
            self._core.commit_to(position)

    def _may_commit_behind(self, position: int) -> bool:
        """Tell whether the leader's own bytes after a position can help to commit something.

        They cannot unless another voter has persisted bytes after it, or there is no other.
        """
        voters = self._log.members.latest.voters
        is_alone = True
        for peer, progress in self.progress.items():
            if peer in voters:
                if progress.match > position:
                    return True
                is_alone = False
        return is_alone

    def _counted(self, voter: NodeId) -> int:
        if voter == self._core.node:
            return self._log.persisted
        progress = self.progress[voter]
        return 0 if progress.suspect else progress.match

    # Peers.

    def _meet_peers(self) -> None:
        """Keep a progress for every peer of the valid configuration."""
        peers = self._core.peers
        for peer in self.progress.keys() - set(peers):
            del self.progress[peer]
        for peer in peers:
            if peer not in self.progress:
                self.progress[peer] = Progress(self._log.end, self._core.now)
                self._compare(peer)
        self._urgent = self._core.members.voters
        if self.transferring is not None and self.transferring not in self._core.members.voters:
            self._give_up_transfer()

    def _choose_urgent(self) -> None:
        """Choose the voters to commit with: those of before, unless others have more of the log."""

        def rank(voter: NodeId) -> tuple[int, bool, bool, bool, NodeId]:
            is_own = voter == self._core.node
            is_up = is_own or self.progress[voter].pace is Pace.STREAMING
            return self._counted(voter), is_up, voter in self._urgent, is_own, voter

        voters = self._core.members.voters
        self._urgent = frozenset(sorted(voters, key=rank)[-majority(voters) :])

    def link_up(self, peer: NodeId) -> None:
        """Find out at once what a peer has, now that it can be reached again."""
        if peer in self.progress:
            self._compare(peer)

    def link_down(self, peer: NodeId) -> None:
        """Forget the bytes under way to a peer; other peers may be needed at once."""
        progress = self.progress.get(peer)
        if progress is not None and progress.pace is Pace.STREAMING:
            progress.probe(progress.next)
        elif progress is not None:
            progress.ship = None
        if peer in self._urgent:
            self._urgent = self._core.members.voters
            for other in self.progress:
                self._pump(other, may_gather=True)

    def take_reply(self, peer: NodeId, reply: AppendReply) -> None:
        """Take a peer's statement about its log.

        Raises:
            ReplicationError: The peer claims bytes that the leader does not have.
        """
        progress = self.progress.get(peer)
        if progress is None:
            return
        if reply.match > self._log.end:
            raise ReplicationError(
                f"{peer} acknowledges the position {reply.match} in term {reply.term}, but the"
                f" leader's log ends at {self._log.end}"
            )
        progress.heard = self._core.now
        progress.is_silent = False
        if reply.suspect != progress.suspect:
            self._note_suspicion(progress, reply)
        if reply.conflict is not None:
            self._resolve(peer, progress, reply)
            return
        if progress.pace is Pace.OFFERING and reply.match >= self._log.first:
            progress.probe(reply.match)
        if progress.pace is Pace.PROBING and (
            reply.prev == progress.next or reply.match >= progress.next
        ):
            progress.pace = Pace.STREAMING
        progress.acknowledge(reply.match)
        commit = self._log.commit
        if progress.match > commit:
            self.count()
        if progress.next < self._log.end:
            self._pump(peer, may_gather=True)
        if peer == self.transferring or commit < self._log.commit:
            self._hand_over()

    def persisted(self) -> None:
        """Note that more of the leader's own log is safe."""
        if self._may_commit_behind(self._log.commit):
            self.count()
        if self.transferring is not None:
            self._hand_over()

    def _note_suspicion(self, progress: Progress, reply: AppendReply) -> None:
        """Note that a peer has become suspect, or is no longer suspect."""
        if reply.suspect:
            progress.match = 0
            progress.bar = self._log.end
            # A member that forgot its vote waits for something written after this moment.
            self._core.do(WriteTermRecord(self._core.term))
        progress.suspect = reply.suspect

    def _resolve(self, peer: NodeId, progress: Progress, reply: AppendReply) -> None:
        """Find the next position to compare at. A reply that is out of date changes nothing."""
        assert reply.conflict is not None
        if progress.pace is Pace.OFFERING or reply.prev < progress.match:
            return
        if progress.pace is Pace.PROBING and reply.prev != progress.next:
            return
        point = self._log.terms.meeting_point(reply.conflict, self._log.end)
        progress.probe(min(point, reply.prev))
        self._compare(peer)

    def _compare(self, peer: NodeId) -> None:
        """Send a message without bytes: a heartbeat, a probe, or an offer."""
        progress = self.progress[peer]
        core, log = self._core, self._log
        progress.told = log.commit
        if progress.next < log.first:
            progress.pace = Pace.OFFERING
            progress.ship = None
        if progress.pace is Pace.OFFERING:
            offer = SnapshotOffer(
                core.term,
                log.first,
                log.terms.before(log.first)[-1:],
                log.members.at(log.first),
                log.commit,
                progress.suspect,
                progress.bar,
            )
            core.send(peer, offer)
            return
        prev = progress.next
        append = Append(
            core.term,
            prev,
            log.terms.term_before(prev),
            prev,
            commit=log.commit,
            suspect=progress.suspect,
            bar=progress.bar,
        )
        core.send(peer, append)

    def _pump(self, peer: NodeId, *, may_gather: bool = False) -> None:
        """Ship the next bytes, if the peer may get more and they need not gather."""
        progress = self.progress[peer]
        log = self._log
        start = progress.next
        if start >= log.end or not progress.room(self._core.config.window_bytes):
            return
        if may_gather and self._gathers(peer, progress):
            return
        if start < log.first:
            self._compare(peer)
            return
        end, spans, members = self._next_message(start)
        progress.told = log.commit
        progress.ship = Ship(
            peer,
            self._core.term,
            start,
            end,
            log.terms.term_before(start),
            spans,
            members,
            log.commit,
            progress.suspect,
            progress.bar,
        )
        self._core.do(progress.ship)

    def _gathers(self, peer: NodeId, progress: Progress) -> bool:
        """Tell whether the next bytes for a peer wait for more."""
        config = self._core.config
        size = self._log.end - progress.next
        if self.transferring is not None:
            return False
        if peer not in self._urgent:
            return size < config.spare_bytes
        return progress.match < progress.next and size < config.gather_bytes

    def _next_message(
        self, start: int
    ) -> tuple[int, tuple[TermSpan, ...], tuple[MemberRecord, ...]]:
        """Return the end of the next message, and the terms and members that it states.

        It states a bounded number of them.
        """
        log = self._log
        end = log.end
        spans = log.terms.between(start, end)
        if len(spans) > SPANS_MAX:
            end = spans[SPANS_MAX].start
            spans = spans[:SPANS_MAX]
        members = log.members.between(start, end)
        if len(members) > MEMBERS_MAX:
            end = members[MEMBERS_MAX - 1].position
            spans, members = log.terms.between(start, end), members[:MEMBERS_MAX]
        return end, spans, members

    # Handover and members.

    def transfer(self, to: NodeId) -> None:
        """Let a voter take over, once it has the whole log.

        Raises:
            ReplicationError: It cannot take over.
        """
        if self.transferring is not None:
            raise ReplicationError(
                f"leadership is being handed over to {self.transferring} already"
            )
        if to == self._core.node:
            raise ReplicationError(f"{to} leads already")
        if to not in self._core.members.voters:
            raise ReplicationError(f"{to} is no voter of the group")
        progress = self.progress[to]
        if progress.suspect:
            raise ReplicationError(f"{to} is suspect: it must get its log back first")
        silence = self._core.now - progress.heard
        if silence >= self._core.config.election_ticks:
            raise ReplicationError(f"{to} has not answered for {silence} ticks; see why it is down")
        self.transferring = to
        self._pump(to)
        self._transfer_end = self._core.now + self._core.config.election_ticks
        self._core.do(PauseWrites(to))
        self._hand_over()

    def _hand_over(self) -> None:
        """Let the next leader campaign once everything is committed and it has the whole log.

        So the senders of the last messages learn that these are stored.
        """
        to, log = self.transferring, self._log
        if to is not None and self.progress[to].match == log.commit == log.end:
            self._core.send(to, TimeoutNow(self._core.term))

    def _give_up_transfer(self) -> None:
        self.transferring = None
        self._core.do(ResumeWrites())

    def resign(self) -> None:
        """Send the commit position to all peers, and ask the one with most log to campaign."""
        for peer in self.progress:
            self._compare(peer)
        voters = [
            (progress.match, peer)
            for peer, progress in self.progress.items()
            if peer in self._core.members.voters and not progress.suspect
        ]
        if voters:
            self._core.send(max(voters)[1], TimeoutNow(self._core.term))

    def propose_members(self, change: MemberChange) -> None:
        """Ask the driver to write a changed configuration.

        Raises:
            ReplicationError: The change is not possible now.
        """
        if not self.has_committed:
            raise ReplicationError("the leader has committed nothing in its term yet; try again")
        is_open = self._log.members.latest_position > self._log.commit
        if is_open or self._proposed is not None:
            raise ReplicationError("another change of members is not committed yet; try again")
        members = change.apply(self._core.members)
        if change.kind is ChangeKind.PROMOTE:
            self._check_caught_up(change.node)
        self._proposed = members
        self._core.do(WriteMembers(members))

    def members_refused(self) -> None:
        """Forget a change whose record could not be written."""
        self._proposed = None

    def _check_caught_up(self, node: NodeId) -> None:
        progress = self.progress[node]
        missing = self._log.end - progress.match
        if progress.suspect or missing > self._core.config.window_bytes:
            raise ReplicationError(f"{node} lacks {missing} bytes of the log; wait for it")
