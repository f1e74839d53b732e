"""Bugs to plant into nodes: each breaks one rule, as code that was written in haste would.

A plant replaces methods of the real classes through pytest's ``monkeypatch``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketpost.raft.actions import Accept, Action, Cut, WriteMembers
from rocketpost.raft.core import Core, Log
from rocketpost.raft.election import Campaign
from rocketpost.raft.follower import Follower, _from
from rocketpost.raft.leader import Leader
from rocketpost.raft.members import MemberChange
from rocketpost.raft.messages import Append, AppendReply, Message, NodeId
from rocketpost.raft.node import RaftNode
from rocketpost.raft.quorum import has_majority, majority, majority_position
from rocketpost.raft.terms import TermTable

from .disk import StateFile
from .server import Saved

Plant = Callable[[pytest.MonkeyPatch], None]

ALL: list[Plant] = []


def bug(plant: Plant) -> Plant:
    """List a function that plants a bug."""
    ALL.append(plant)
    return plant


# -- acknowledgements


@bug
def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "acknowledged", property(lambda self: self._matched))


@bug
def own_fsync_not_awaited(patch: pytest.MonkeyPatch) -> None:
    counted = Leader._counted

    def count_written(leader: Leader, voter: NodeId) -> int:
        own = leader._core.node
        return leader._log.end if voter == own else counted(leader, voter)

    patch.setattr(Leader, "_counted", count_written)


@bug
def flush_counts_for_replaced_bytes(patch: pytest.MonkeyPatch) -> None:
    persisted = RaftNode.persisted

    def believe(node: RaftNode, end: int, cuts: int | None = None) -> list[Action]:
        return persisted(node, min(end, node.log.end))

    patch.setattr(RaftNode, "persisted", believe)


@bug
def ack_without_comparing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "acknowledged", property(lambda self: self._log.persisted))


@bug
def duplicate_connection_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Count acknowledgements instead of the members that sent them."""
    take_reply = Leader.take_reply

    def take(leader: Leader, peer: NodeId, reply: AppendReply) -> None:
        acks: list[int] = leader.__dict__.setdefault("acks", [])
        if reply.conflict is None:
            acks.append(reply.match)
        take_reply(leader, peer, reply)

    def count(leader: Leader) -> None:
        needed = majority(leader._core.members.voters) - 1
        acks = sorted(leader.__dict__.get("acks", []), reverse=True)
        if len(acks) < needed:
            return
        position = min(leader._log.persisted, acks[needed - 1]) if needed else leader._log.persisted
        if leader._log.terms.term_before(position) == leader._core.term:
            leader._core.commit_to(position)

    patch.setattr(Leader, "take_reply", take)
    patch.setattr(Leader, "count", count)


@bug
def learners_counted(patch: pytest.MonkeyPatch) -> None:
    def count(leader: Leader) -> None:
        members = leader._core.members
        acks = sorted(map(leader._counted, members.voters | members.learners), reverse=True)
        position = acks[majority(members.voters) - 1]
        if leader._log.terms.term_before(position) == leader._core.term:
            leader._core.commit_to(position)

    patch.setattr(Leader, "count", count)


# -- terms and votes


@bug
def vote_sent_before_it_is_saved(patch: pytest.MonkeyPatch) -> None:
    state = Core.state_saved

    def send_all(core: Core) -> list[Action]:
        state(core, core.number)
        return take_actions(core)

    take_actions = Core.take_actions
    patch.setattr(Core, "take_actions", send_all)


@bug
def vote_not_saved(patch: pytest.MonkeyPatch) -> None:
    """Save the term alone."""
    write = StateFile.write

    def write_term(file: StateFile[Saved], state: Saved) -> None:
        write(file, state._replace(vote=None))

    patch.setattr(StateFile, "write", write_term)


@bug
def vote_for_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_behind", lambda _log, _term, _end: True)


@bug
def votes_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Count vote replies instead of the members that sent them."""

    def grant(campaign: Campaign, voter: NodeId) -> None:
        replies: list[NodeId] = campaign.__dict__.setdefault("replies", [])
        replies.append(voter)

    def is_won(campaign: Campaign) -> bool:
        is_own = campaign.is_pre or campaign._core.saved >= campaign._number
        count = len(campaign.__dict__.get("replies", [])) + is_own
        return count >= majority(campaign._core.members.voters)

    patch.setattr(Campaign, "grant", grant)
    patch.setattr(Campaign, "is_won", property(is_won))


@bug
def stale_term_accepted(patch: pytest.MonkeyPatch) -> None:
    """Take appends of a deposed leader."""
    is_current = RaftNode._is_current

    def accept(node: RaftNode, sender: NodeId, message: Message) -> bool:
        if isinstance(message, Append) and message.term < node.term and node._leader is None:
            node._follower.leader = sender
            return True
        return is_current(node, sender, message)

    patch.setattr(RaftNode, "_is_current", accept)


@bug
def suspect_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftNode, "is_suspect", property(lambda _node: False))


@bug
def failed_node_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftNode, "failed", lambda _node: [])


@bug
def pre_vote_off(patch: pytest.MonkeyPatch) -> None:
    begin = RaftNode._begin_campaign

    def campaign(node: RaftNode, *, is_pre: bool, is_transfer: bool = False) -> None:
        begin(node, is_pre=False, is_transfer=is_transfer)

    patch.setattr(RaftNode, "_begin_campaign", campaign)


@bug
def lease_off(patch: pytest.MonkeyPatch) -> None:
    """Answer candidates although the leader is heard."""
    patch.setattr(RaftNode, "_hears_leader", property(lambda _node: False))


# -- leading


@bug
def old_term_committed_by_counting(patch: pytest.MonkeyPatch) -> None:
    def count(leader: Leader) -> None:
        position = majority_position(leader._core.members.voters, leader._counted)
        leader._core.commit_to(position)

    patch.setattr(Leader, "count", count)


@bug
def no_term_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "begin", lambda leader: leader._meet_peers())


@bug
def check_quorum_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "hears_majority", property(lambda _leader: True))


@bug
def lease_longer_than_the_time_out(patch: pytest.MonkeyPatch) -> None:
    """Let a leader stay in office for several election time-outs without a majority."""

    def hears_majority(leader: Leader) -> bool:
        since = leader._core.now - 4 * leader._core.config.election_ticks
        active = {peer for peer, each in leader.progress.items() if each.heard > since}
        return has_majority(leader._core.members.voters, active | {leader._core.node})

    patch.setattr(Leader, "hears_majority", property(hears_majority))


@bug
def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    def propose(leader: Leader, change: MemberChange) -> None:
        leader._proposed = change.apply(leader._core.members)
        leader._core.do(WriteMembers(leader._proposed))

    patch.setattr(Leader, "propose_members", propose)


@bug
def change_before_own_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "has_committed", property(lambda _leader: True))


# -- following


@bug
def truncate_on_every_append(patch: pytest.MonkeyPatch) -> None:
    """Cut at the beginning of each message, also if it is old and only repeats known bytes."""

    def take_bytes(follower: Follower, message: Append) -> None:
        log = follower._log
        if message.prev < log.end:
            log.commit = min(log.commit, message.prev)
            log.cut(message.prev)
            follower._matched = min(follower._matched, message.prev)
            follower._cut = Cut(message.prev)
            follower._core.do(follower._cut)
        accept = Accept(log.end, message.end, _from(message, log.end), message.members)
        follower._accept, follower._accept_term = accept, follower._core.term
        follower._core.do(accept)

    patch.setattr(Follower, "_take_bytes", take_bytes)


@bug
def conflict_not_cut(patch: pytest.MonkeyPatch) -> None:
    """Keep bytes of another term, and take the rest of the leader's behind them."""
    patch.setattr(TermTable, "divergence", lambda *_args: None)


@bug
def commit_what_was_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Take the leader's commit position for one of the own log, as far as that goes."""

    def advance(follower: Follower) -> None:
        if follower.leader is not None:
            follower._core.commit_to(min(follower._leader_commit, follower._log.end))

    patch.setattr(Follower, "_advance", advance)
