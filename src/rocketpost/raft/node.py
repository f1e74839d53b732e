"""One member of a group that elects a leader and replicates a log: Raft as a pure state machine.

The machine knows positions and terms, never bytes. It has no clock, no files, no sockets, and no
threads; chance is handed to it. A *driver* calls its inputs one at a time, and carries out the
list of actions that each returns **in order**, before the next input.

Inputs, besides :meth:`RaftNode.tick` at every tick (50 ms by default):

=========================  =========================================================================
``step(sender, message)``  A message of a peer arrived. The bytes of an ``Append`` stay with the
                           driver: an ``Accept`` for them comes with this call's actions, or never.
``state_saved(number)``    The ``SaveState`` of this number, and all before it, are durable.
``grew(end, members)``     Leader: a record was written, up to ``end``. ``members`` is set if that
                           record is the one that ``WriteMembers`` asked for.
``persisted(end, cuts)``   Log, terms and records of members up to ``end`` are as safe as an
                           acknowledgement asks for. A flush that runs elsewhere hands in what
                           :attr:`RaftNode.cuts` was when it began: it says nothing about bytes
                           that have replaced others since.
``appended(end)``          The ``Accept`` was carried out, perhaps only up to ``end``.
``cut_done(position)``     The ``Cut`` was carried out.
``reset_done(first)``      The ``Reset`` was carried out.
``shipped(ship, end)``     The ``Ship`` was handed to the link, up to ``end``.
``link_up(peer)``          A link to a peer was made; optional, saves a heartbeat's time.
``link_down(peer)``        The link was lost, and perhaps with it what was under way.
``trimmed(first)``         Bytes before ``first`` were deleted; they were committed.
``transfer(to)``           Hand leadership over.
``propose_members(…)``     Change the members by one.
``members_refused()``      The record that ``WriteMembers`` asked for could not be written.
``trust(floor)``           All members of the group are new, so this one has lost nothing.
``doubt(suspicion)``       A peer remembers something of this member that it has lost.
``step_down()``            This leader has no room for its records: another member may lead.
``failed()``               A write or flush failed: this process neither leads nor votes again.
=========================  =========================================================================

Actions are the classes of :mod:`rocketpost.raft.actions`, which say what to report back. Reports
may come at any time later, in the order of the actions, except ``appended`` and ``cut_done`` for
one message: the cut comes first. Messages may be lost, repeated, delayed and reordered.

Before a node is made, the driver has recovered the log, cut it to whole records, made the rest
durable, and read term, vote, spans and records of members. A member whose log is shorter than what
it once acknowledged, or whose state file is lost, starts with a ``Suspicion``. The rest of its log
must be right, bytes and terms: a driver cuts off the part that it cannot trust, or begins anew.
Inputs that are called while actions are carried out return more of them, which follow those.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Action, BecomeFollower, BecomeLeader, Ship
from rocketpost.raft.checks import check_message, outdated_reply
from rocketpost.raft.config import Chance, RaftConfig
from rocketpost.raft.core import Core, Log
from rocketpost.raft.election import Campaign, Role
from rocketpost.raft.follower import Follower, Suspicion
from rocketpost.raft.leader import Leader
from rocketpost.raft.members import MemberChange
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    MemberRecord,
    Members,
    Message,
    NodeId,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReply,
)
from rocketpost.raft.progress import Progress


class RaftNode:
    """State machine of one member. Not thread-safe.

    Invariants, besides those of the modules that it is made of:

    - At most one leader per term (Election Safety): a member votes once per term, and only for a
      log at least as new as its own.
    - A member that heard its leader within ``election_ticks`` votes for nobody, unless the leader
      hands over; a leader steps down within that time if it hears no majority.
    - A suspect or failed member never votes or campaigns; a failed one is silent.
    - A leader steps down only in a tick, for a message of a later term, or for ``doubt`` and the
      like: before these, the driver reports what it has written.
    """

    def __init__(
        self,
        node: NodeId,
        *,
        config: RaftConfig,
        chance: Chance,
        term: int = 0,
        vote: NodeId | None = None,
        first: int = 0,
        end: int = 0,
        commit: int = 0,
        spans: Iterable[TermSpan] = (),
        members: Iterable[MemberRecord] = (),
        suspicion: Suspicion = Suspicion.NONE,
        floor: int = 0,
    ) -> None:
        """Start, or start again.

        Args:
            node: Name of this member.
            config: Times and sizes.
            chance: Source of random time-outs; seeded, so that runs can be repeated.
            term: Saved term.
            vote: Saved vote in that term.
            first: First position of the log.
            end: End of the log. Everything before it is durable.
            commit: A position that is known to be committed; at least 0.
            spans: Terms of the log.
            members: Records of members in the log, and the one that is valid at its start. A new
                group begins with the same record at position 0 on every member.
            suspicion: Whether the member may have lost something that it relied on.
            floor: What ``trust`` has got, as far as it is saved.
        """
        log = Log(first=first, end=end, commit=commit, spans=spans, members=members, floor=floor)
        self._core = Core(node=node, config=config, chance=chance, term=term, vote=vote, log=log)
        self._follower = Follower(self._core, suspicion)
        self._campaign: Campaign | None = None
        self._leader: Leader | None = None
        self._has_failed = False
        self._heard = 0
        self._announced: tuple[int, NodeId | None] | None = None
        self._timeout = self._core.draw_timeout()

    # State.

    @property
    def node(self) -> NodeId:
        """Name of this member."""
        return self._core.node

    @property
    def role(self) -> Role:
        """Part that this member plays."""
        if self._leader is not None:
            return Role.LEADER
        return Role.FOLLOWER if self._campaign is None else self._campaign.role

    @property
    def term(self) -> int:
        """The term, perhaps not saved yet."""
        return self._core.term

    @property
    def vote(self) -> NodeId | None:
        """The vote in this term, perhaps not saved yet."""
        return self._core.vote

    @property
    def leader(self) -> NodeId | None:
        """The leader as far as known."""
        return self._core.node if self._leader is not None else self._follower.leader

    @property
    def is_suspect(self) -> bool:
        """Whether this member must get its log back before it votes."""
        return self._follower.suspect != 0

    @property
    def has_failed(self) -> bool:
        """Whether a write or flush failed."""
        return self._has_failed

    @property
    def log(self) -> Log:
        """Positions, terms and members of the log. Not to be changed."""
        return self._core.log

    @property
    def commit(self) -> int:
        """Commit position."""
        return self._core.log.commit

    @property
    def cuts(self) -> int:
        """Number that rises whenever bytes of the log are replaced; see ``persisted``."""
        return self._core.log.cuts

    @property
    def members(self) -> Members:
        """The valid configuration."""
        return self._core.members

    @property
    def progress(self) -> dict[NodeId, Progress]:
        """The leader's view of its peers; empty if this member does not lead."""
        return self._leader.progress if self._leader is not None else {}

    @property
    def awaits_flush(self) -> bool:
        """Whether ``persisted`` would have effects now; else it may be called before a reply."""
        return self._leader is None or self._leader.awaits_flush

    # Time and messages.

    def tick(self) -> list[Action]:
        """Let one tick pass."""
        self._core.now += 1
        if self._leader is not None:
            if self._leader.is_removed:
                self._leader.resign()
            if self._leader.is_removed or not self._leader.hears_majority:
                self._follow(None)
            else:
                self._leader.tick()
        elif self._core.now - self._heard >= self._timeout:
            if self._may_campaign:
                self._begin_campaign(is_pre=True)
            else:
                self._follow(None)
        return self._finish()

    def step(self, sender: NodeId, message: Message) -> list[Action]:
        """Take a message of a peer.

        Raises:
            ReplicationError: The message cannot be true; close the link.
        """
        if self._has_failed:
            return []
        check_message(message)
        if self._is_current(sender, message):
            self._take(sender, message)
        return self._finish()

    def _is_current(self, sender: NodeId, message: Message) -> bool:
        """Enter a newer term; refuse messages of an older one."""
        core = self._core
        if message.term > core.term:
            is_granted = isinstance(message, PreVoteReply) and message.granted
            if is_granted or isinstance(message, PreVote):
                return True
            if isinstance(message, Vote) and not message.is_transfer and self._hears_leader:
                return False
            is_leader = isinstance(message, Append | SnapshotOffer)
            self._core.set_term(message.term, sender if is_leader else None)
            self._follow(None)
            return True
        if message.term < core.term and (reply := outdated_reply(message, core.term)) is not None:
            core.send(sender, reply)
        return message.term >= core.term

    def _take(self, sender: NodeId, message: Message) -> None:
        match message:
            case AppendReply():
                if self._leader is not None:
                    self._leader.take_reply(sender, message)
            case Append():
                self._hear(sender)
                self._follower.take_append(message)
            case PreVote():
                self._answer_pre_vote(sender, message)
            case Vote():
                self._answer_vote(sender, message)
            case PreVoteReply() | VoteReply():
                self._count_vote(sender, message)
            case SnapshotOffer():
                self._hear(sender)
                self._follower.take_offer(message)
            case TimeoutNow():
                if self._may_campaign:
                    self._begin_campaign(is_pre=False, is_transfer=True)

    def _hear(self, leader: NodeId) -> None:
        """Note that a peer leads the present term."""
        assert self._leader is None, f"{leader} and {self.node} lead term {self.term}"
        known = self._follower.leader
        assert known in (None, leader), f"{known} and {leader} lead term {self.term}"
        self._heard = self._core.now
        if known is None or self._campaign is not None:
            self._follow(leader)
        if self._core.vote is None:
            # The vote of this term is used up, also if it was given and forgotten.
            self._core.set_term(self._core.term, leader)

    # Elections.

    @property
    def _hears_leader(self) -> bool:
        if self._leader is not None:
            return True
        silence = self._core.now - self._heard
        return self._follower.leader is not None and silence < self._core.config.election_ticks

    def _answer_pre_vote(self, sender: NodeId, message: PreVote) -> None:
        core = self._core
        granted = (
            message.term > core.term
            and not self._hears_leader
            and not self.is_suspect
            and core.log.is_behind(message.last_term, message.end)
        )
        core.send(sender, PreVoteReply(message.term if granted else core.term, granted))

    def _answer_vote(self, sender: NodeId, message: Vote) -> None:
        core = self._core
        granted = (
            core.vote in (None, sender)
            and self.leader is None
            and not self.is_suspect
            and core.log.is_behind(message.last_term, message.end)
        )
        if granted:
            core.set_term(core.term, sender)
            self._heard = core.now
        core.send(sender, VoteReply(core.term, granted))

    def _begin_campaign(self, *, is_pre: bool, is_transfer: bool = False) -> None:
        """Ask for votes; without a pre-vote if the leader or a majority wants that."""
        assert self._may_campaign
        self._heard = self._core.now
        self._timeout = self._core.draw_timeout()
        self._follower.begin(None)
        if not is_pre:
            self._core.set_term(self._core.term + 1, self.node)
        self._campaign = Campaign(self._core, is_pre=is_pre)
        self._campaign.ask(is_transfer=is_transfer)
        self._check_campaign()

    @property
    def _may_campaign(self) -> bool:
        is_able = self._leader is None and not self._has_failed and not self.is_suspect
        return is_able and self._core.may_be_needed and not self._follower.is_busy

    def _count_vote(self, sender: NodeId, message: PreVoteReply | VoteReply) -> None:
        campaign = self._campaign
        if campaign is None or not message.granted or message.term != campaign.term:
            return
        if campaign.is_pre == isinstance(message, PreVoteReply):
            campaign.grant(sender)
            self._check_campaign()

    def _check_campaign(self) -> None:
        if self._campaign is None or not self._campaign.is_won:
            return
        if self._campaign.is_pre:
            self._begin_campaign(is_pre=False)
        else:
            self._lead()

    # Roles.

    def _follow(self, leader: NodeId | None) -> None:
        self._core.note_change()
        self._campaign = self._leader = None
        self._follower.begin(leader)
        self._heard = self._core.now
        self._timeout = self._core.draw_timeout()

    def _lead(self) -> None:
        assert not self._follower.is_busy
        assert not self.is_suspect
        self._campaign = None
        self._leader = Leader(self._core)
        self._announced = None
        self._core.do(BecomeLeader(self.term))
        self._leader.begin()

    def _finish(self) -> list[Action]:
        """Tell the driver about a change of leader, and return the actions."""
        if self._leader is None:
            state = (self.term, self._follower.leader)
            if state != self._announced:
                self._announced = state
                self._core.announce(BecomeFollower(*state))
        return self._core.take_actions()

    # Reports of the driver.

    def state_saved(self, number: int) -> list[Action]:
        """Note that a state is durable."""
        if self._has_failed:  # a success after a failure proves nothing
            return []
        self._core.state_saved(number)
        self._check_campaign()
        return self._finish()

    def grew(self, end: int, members: Members | None = None) -> list[Action]:
        """Note that this leader has written its log up to ``end``."""
        assert self._leader is not None, "only a leader writes"
        self._leader.grew(end, members)
        return self._finish()

    def persisted(self, end: int, cuts: int | None = None) -> list[Action]:
        """Note that the log is safe up to ``end``, perhaps after the position of a pending cut."""
        log = self._core.log
        if self._has_failed or (cuts is not None and cuts != log.cuts):
            return []
        assert end <= log.end or self._follower.is_busy, f"persisted {end} of {log.end}"
        if end > log.persisted:
            log.persisted = min(end, log.end)
            if self._leader is not None:
                self._leader.persisted()
            else:
                self._follower.persisted()
        return self._finish()

    def appended(self, end: int) -> list[Action]:
        """Note that the bytes of an ``Accept`` are in the log."""
        self._follower.appended(end)
        return self._finish()

    def cut_done(self, position: int) -> list[Action]:
        """Note that the log was cut."""
        self._follower.cut_done(position)
        return self._finish()

    def reset_done(self, first: int) -> list[Action]:
        """Note that the log was replaced by an empty one."""
        self._follower.reset_done(first)
        return self._finish()

    def trimmed(self, first: int) -> list[Action]:
        """Note that the log begins at ``first`` now."""
        self._core.log.trim(first)
        return self._finish()

    def shipped(self, ship: Ship, end: int) -> list[Action]:
        """Note that bytes were handed to the link of a peer."""
        if self._leader is not None:
            self._leader.shipped(ship, end)
        return self._finish()

    def link_up(self, peer: NodeId) -> list[Action]:
        """Note that a peer can be reached."""
        if self._leader is not None:
            self._leader.link_up(peer)
        return self._finish()

    def link_down(self, peer: NodeId) -> list[Action]:
        """Note that the link to a peer was lost."""
        if self._leader is not None:
            self._leader.link_down(peer)
        return self._finish()

    def step_down(self) -> list[Action]:
        """Stop leading; this member may vote, and lead again later."""
        return self.doubt(Suspicion.NONE)

    def failed(self) -> list[Action]:
        """Step down for good: a write or flush of this member has failed."""
        self._has_failed = True
        if self._leader is not None:
            self._leader.resign()
        self._follow(None)
        return self._finish()

    # Administration.

    def transfer(self, to: NodeId) -> list[Action]:
        """Hand leadership over to a voter.

        Raises:
            ReplicationError: This is not possible; the text says why.
        """
        self._require_leader().transfer(to)
        return self._finish()

    def propose_members(self, change: MemberChange) -> list[Action]:
        """Change the members by one.

        Raises:
            ReplicationError: This is not possible now; the text says why.
        """
        self._require_leader().propose_members(change)
        return self._finish()

    def members_refused(self) -> list[Action]:
        """Note that the record of changed members could not be written."""
        if self._leader is not None:
            self._leader.members_refused()
        return self._finish()

    def trust(self, floor: int = 0) -> list[Action]:
        """End the suspicion of a member without a past; see ``Log.floor``."""
        assert self.term == 0, f"term {self.term} has begun"
        self._core.log.floor = floor
        self._follower.trust()
        return self._finish()

    def doubt(self, suspicion: Suspicion) -> list[Action]:
        """Note that this member has lost something since it last ran."""
        self._follower.doubt(suspicion)
        if self._leader is not None or self._campaign is not None:
            self._follow(None)
        return self._finish()

    def _require_leader(self) -> Leader:
        if self._leader is None:
            raise ReplicationError(f"{self.node} does not lead; ask {self.leader or 'again later'}")
        return self._leader
