"""Lives of groups as text: ``traces/*.txt``, named after sections of the paper and known cases.

Records have ten bytes. A group has the members a, b and c unless the file says otherwise. After
each command stand the messages that were delivered, and what the members did. Whatever a file
says, the checks of :class:`~.group.Group` hold after every input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReply,
)
from rocketpost.raft.node import RaftNode, Role
from rocketpost.raft.terms import TermTable
from rocketpost.testing.trace_files import TraceCommand, run_trace

from .group import RECORD_BYTES, Disk, Envelope, Group, Record, show_members

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
KINDS = {
    "learner": ChangeKind.ADD_LEARNER,
    "promote": ChangeKind.PROMOTE,
    "remove": ChangeKind.REMOVE,
}


def show(message: Message) -> str:
    """Return a message as one line."""
    match message:
        case PreVote():
            return f"pre-vote in {message.term}? {message.end}/{message.last_term}"
        case Vote():
            text = f"vote in {message.term}? {message.end}/{message.last_term}"
            return text + (" (handover)" if message.is_transfer else "")
        case PreVoteReply():
            return f"pre-vote in {message.term}: {'yes' if message.granted else 'no'}"
        case VoteReply():
            return f"vote in {message.term}: {'yes' if message.granted else 'no'}"
        case TimeoutNow():
            return f"time-out now, term {message.term}"
        case SnapshotOffer():
            return f"offer in {message.term}: log from {message.first}"
        case Append():
            return show_append(message)
        case AppendReply():
            return show_reply(message)


def show_append(message: Append) -> str:
    kind = "append" if message.end > message.prev else "compare"
    parts = [f"{kind} in {message.term} at {message.prev}/{message.prev_term}"]
    if message.spans:
        spans = " ".join(f"{span.term}@{span.start}" for span in message.spans)
        parts.append(f"up to {message.end}, terms {spans}")
    if message.members:
        parts.append(" ".join(show_members(record.members) for record in message.members))
    parts.append(f"commit {message.commit}")
    if message.suspect:
        parts.append(f"bar {message.bar}")
    return ", ".join(parts)


def show_reply(message: AppendReply) -> str:
    text = f"has {message.match} in {message.term}"
    if message.suspect:
        text += ", suspect"
    if message.conflict is not None:
        term, start, end = message.conflict
        text += f", differs at {message.prev}: {term} in {start}-{end}"
    return text


class TracedGroup:
    """Runs commands, and tells what follows from them."""

    def __init__(self) -> None:
        self.group = Group()

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.group.lines = []
        try:
            action(command)
        except ReplicationError as error:
            self.group.tell(f"refused: {error}")
        yield from self.group.lines

    # The scene.

    def do_group(self, command: TraceCommand) -> None:
        """Begin with other members or settings."""
        config = RaftConfig(
            window_bytes=command.option_int("window", 1000),
            gather_bytes=command.option_int("gather", 0),
            spare_bytes=command.option_int("spare", 0),
        )
        self.group = Group(" ".join(command.args), config=config)
        self.group.ship_bytes = command.option_int("ship", 1000)

    def do_given(self, command: TraceCommand) -> None:
        """Give a member a log before it starts: the terms of its records."""
        name = command.args[0]
        terms = [int(term) for term in command.options.get("terms", "").split(",") if term]
        disk = self.group.members[name].disk
        records = [Record(term, f"{term}@{index}") for index, term in enumerate(terms)]
        table = TermTable()
        for index, term in enumerate(terms):
            table.add(TermSpan(term, index * RECORD_BYTES))
        self.group.members[name].disk = Disk(
            term=command.option_int("term", max(terms, default=0)),
            vote=command.options.get("vote"),
            records=records,
            spans=list(table.spans),
            members=disk.members,
            durable=len(records) * RECORD_BYTES,
            commit=command.option_int("commit", 0),
        )
        self.group.members[name].start()

    def do_join(self, command: TraceCommand) -> None:
        """Start a member that knows nothing of the group."""
        self.group.join(command.args[0], Disk())

    def do_start(self, command: TraceCommand) -> None:
        """Start again, perhaps with doubts."""
        name, *doubt = command.args
        suspicion = {"suspect": Suspicion.LOG, "forgetful": Suspicion.STATE}
        self.group.members[name].start(suspicion[doubt[0]] if doubt else Suspicion.NONE)

    def do_crash(self, command: TraceCommand) -> None:
        self.group.members[command.args[0]].crash(power=False)

    def do_power(self, command: TraceCommand) -> None:
        """Cut the power: only what was flushed stays."""
        self.group.members[command.args[0]].crash(power=True)

    def do_damage(self, command: TraceCommand) -> None:
        """Stop a member, and truncate its log; ``all`` loses its files."""
        member = self.group.members[command.args[0]]
        member.crash(power=False)
        if command.args[1] == "all":
            member.disk = Disk()
        else:
            member.disk.cut(int(command.args[1]))
            member.disk.commit = min(member.disk.commit, member.disk.end)

    def do_term(self, command: TraceCommand) -> None:
        """Start a member again in a newer term, as if it had campaigned on its own."""
        member = self.group.members[command.args[0]]
        member.crash(power=False)
        member.disk.term, member.disk.vote = int(command.args[1]), None
        member.start()

    def do_slow(self, command: TraceCommand) -> None:
        """Let a member save its state, change its log, or flush it, only when told."""
        member = self.group.members[command.args[0]]
        member.saves_at_once = "state" not in command.args
        member.flushes_at_once = "log" not in command.args
        member.changes_at_once = "changes" not in command.args

    def do_save(self, command: TraceCommand) -> None:
        member = self.group.members[command.args[0]]
        member.call(member.save)

    def do_apply(self, command: TraceCommand) -> None:
        """Let a member carry out the changes of its log that wait."""
        member = self.group.members[command.args[0]]
        member.call(member.change)

    def do_flush(self, command: TraceCommand) -> None:
        member = self.group.members[command.args[0]]
        member.call(member.flush)

    # Time and messages.

    def do_tick(self, command: TraceCommand) -> None:
        names = [arg for arg in command.args if not arg.isdigit()]
        count = next((int(arg) for arg in command.args if arg.isdigit()), 1)
        self.group.tick(*names, count=count)

    def do_timeout(self, command: TraceCommand) -> None:
        """Let time pass for one member until it would campaign."""
        name = command.args[0]
        node = self.group[name]
        before = len(self.group.network)
        for _ in range(self.group.config.election_ticks_max):
            self.group.tick(name)
            if node.role is not Role.LEADER and len(self.group.network) > before:
                return

    def do_elect(self, command: TraceCommand) -> None:
        """Let a member win an election, and the group come to rest; tell only who leads."""
        name = command.args[0]
        self.group.elect(name)
        self.group.lines = [f"{name} leads term {self.group[name].term}"]

    def do_run(self, command: TraceCommand) -> None:
        self.group.run(int(command.args[0]))

    def do_deliver(self, command: TraceCommand) -> None:
        """Deliver messages until none is left, or those between some members, or so many."""
        left = next((int(arg) for arg in command.args if arg.isdigit()), 1000)
        while left:
            envelope = next(self.chosen(command), None)
            if envelope is None:
                return
            self.tell_delivery(envelope)
            self.group.deliver(envelope)
            left -= 1
        assert "1000" not in command.args

    def do_drop(self, command: TraceCommand) -> None:
        """Lose messages."""
        for envelope in list(self.chosen(command)):
            self.group.network.remove(envelope)
            self.group.tell(f"{envelope.sender} x {envelope.receiver}: {show(envelope.message)}")

    def do_repeat(self, command: TraceCommand) -> None:
        """Put copies of messages behind all others."""
        self.group.network += list(self.chosen(command))

    def do_late(self, command: TraceCommand) -> None:
        """Put messages behind all others."""
        late = list(self.chosen(command))
        for envelope in late:
            self.group.network.remove(envelope)
        self.group.network += late

    def chosen(self, command: TraceCommand) -> Iterator[Envelope]:
        sender, receiver = command.options.get("from"), command.options.get("to")
        for envelope in self.group.network:
            if sender in (None, envelope.sender) and receiver in (None, envelope.receiver):
                yield envelope

    def tell_delivery(self, envelope: Envelope) -> None:
        receiver = self.group.members.get(envelope.receiver)
        is_up = receiver is not None and receiver.node is not None
        arrow = "->" if is_up and not self.group.is_cut(envelope) else "x"
        text = show(envelope.message)
        self.group.tell(f"{envelope.sender} {arrow} {envelope.receiver}: {text}")

    def do_isolate(self, command: TraceCommand) -> None:
        self.group.isolate(*command.args)

    def do_unlink(self, command: TraceCommand) -> None:
        """Cut the link between two members."""
        self.group.cut_links.add(frozenset(command.args))

    def do_heal(self, command: TraceCommand) -> None:
        assert not command.args
        self.group.heal()

    # Calls of the driver.

    def do_send(self, command: TraceCommand) -> None:
        name, *count = command.args
        self.group.send(name, int(count[0]) if count else 1)

    def do_transfer(self, command: TraceCommand) -> None:
        name, to = command.args
        self.group.members[name].call(lambda node: node.transfer(to))

    def do_change(self, command: TraceCommand) -> None:
        name, kind, node = command.args
        change = MemberChange(KINDS[kind], node)
        self.group.members[name].call(lambda raft: raft.propose_members(change))

    def do_trim(self, command: TraceCommand) -> None:
        """Delete the beginning of a member's log."""
        name, first = command.args[0], int(command.args[1])
        disk = self.group.members[name].disk
        disk.records = disk.slice(first, disk.end)
        disk.first = first
        self.group.members[name].call(lambda node: node.trimmed(first))

    def do_fail(self, command: TraceCommand) -> None:
        self.group.members[command.args[0]].call(RaftNode.failed)

    def do_up(self, command: TraceCommand) -> None:
        name, peer = command.args
        self.group.members[name].call(lambda node: node.link_up(peer))

    def do_down(self, command: TraceCommand) -> None:
        name, peer = command.args
        self.group.members[name].call(lambda node: node.link_down(peer))

    def do_show(self, command: TraceCommand) -> None:
        """Tell what members are and have."""
        for name in command.args or sorted(self.group.members):
            member = self.group.members[name]
            if member.node is None:
                self.group.tell(f"{name}: down")
                continue
            node, log = member.node, member.node.log
            terms = " ".join(str(record.term) for record in member.disk.records)
            doubt = " suspect" if node.is_suspect else ""
            self.group.tell(
                f"{name}:{doubt} {node.role.value} in {node.term}, from {log.first}: [{terms}],"
                f" persisted {log.persisted}, commit {log.commit}"
            )

    def do_progress(self, command: TraceCommand) -> None:
        """Tell what a leader knows of its peers."""
        for peer, progress in sorted(self.group[command.args[0]].progress.items()):
            doubt = ", suspect" if progress.suspect else ""
            bounds = f"match {progress.match}, next {progress.next}"
            self.group.tell(f"{peer}: {progress.pace.value}, {bounds}{doubt}")


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, rewrite: bool) -> None:
    run_trace(path, TracedGroup().run, rewrite=rewrite)
