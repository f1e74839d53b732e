"""A group of members in memory: logs of records of ten bytes, and a network that holds messages.

Nothing moves by itself. Time passes by :meth:`Group.tick`, messages move by :meth:`Group.deliver`.
After every input :meth:`Group.check` compares all members with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from rocketpost.raft.actions import (
    Accept,
    Action,
    BecomeFollower,
    BecomeLeader,
    Cleared,
    Commit,
    Cut,
    PauseWrites,
    Reset,
    ResumeWrites,
    SaveState,
    Send,
    Ship,
    WriteMembers,
    WriteTermRecord,
)
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.messages import MemberRecord, Members, Message, NodeId, TermSpan
from rocketpost.raft.node import RaftNode, Role
from rocketpost.raft.terms import TermTable

RECORD_BYTES = 10


class Record(NamedTuple):
    """A record: the term that wrote it, and a name that no other record has."""

    term: int
    name: str


@dataclass
class Disk:
    """Everything that a member keeps."""

    term: int = 0
    vote: NodeId | None = None
    first: int = 0
    records: list[Record] = field(default_factory=list)
    spans: list[TermSpan] = field(default_factory=list)
    members: list[MemberRecord] = field(default_factory=list)
    durable: int = 0
    commit: int = 0

    @property
    def end(self) -> int:
        return self.first + RECORD_BYTES * len(self.records)

    def slice(self, start: int, end: int) -> list[Record]:
        assert self.first <= start <= end <= self.end
        assert start % RECORD_BYTES == end % RECORD_BYTES == 0
        low = (start - self.first) // RECORD_BYTES
        return self.records[low : (end - self.first) // RECORD_BYTES]

    def cut(self, position: int) -> None:
        del self.records[(position - self.first) // RECORD_BYTES :]
        self.durable = min(self.durable, position)
        self.spans = [span for span in self.spans if span.start < position]
        self.members = [record for record in self.members if record.position <= position]

    def extend(self, records: Iterable[Record], spans: Iterable[TermSpan]) -> None:
        table = TermTable(self.spans)
        for span in spans:
            table.add(span)
        self.spans = list(table.spans)
        self.records += records


class Envelope(NamedTuple):
    """A message under way, with the records behind it."""

    sender: NodeId
    receiver: NodeId
    message: Message
    records: tuple[Record, ...] = ()


class Change(NamedTuple):
    """A change of the log that waits, with the records that came with its message."""

    action: Cut | Accept | Reset
    records: tuple[Record, ...]
    received_at: int


class Member:
    """A node, its disk, and a driver."""

    def __init__(self, group: Group, name: NodeId, disk: Disk) -> None:
        self.group = group
        self.name = name
        self.disk = disk
        self.saves_at_once = True
        self.flushes_at_once = True
        self.changes_at_once = True
        self.changes: list[Change] = []
        self.unsaved: list[SaveState] = []
        self.node: RaftNode | None = None
        self.records: tuple[Record, ...] = ()
        self.received_at = 0
        self.starts = 0

    def start(self, suspicion: Suspicion = Suspicion.NONE) -> None:
        disk = self.disk
        self.unsaved = []
        self.changes = []
        self.starts += 1
        self.node = RaftNode(
            self.name,
            config=self.group.config,
            chance=Random(f"{self.group.seed} {self.name} {self.starts}"),
            term=disk.term,
            vote=disk.vote,
            first=disk.first,
            end=disk.end,
            commit=disk.commit,
            spans=disk.spans,
            members=disk.members,
            suspicion=suspicion,
        )

    def crash(self, *, power: bool) -> None:
        self.node = None
        if power and self.disk.durable < self.disk.end:
            self.disk.cut(self.disk.durable)
        self.disk.durable = self.disk.end

    def call(self, entry: Callable[[RaftNode], list[Action]]) -> None:
        """Call an input, and carry out what follows from it."""
        assert self.node is not None
        waiting = entry(self.node)
        while waiting:
            action = waiting.pop(0)
            waiting += self.carry_out(self.node, action)
        self.group.check()

    def carry_out(self, node: RaftNode, action: Action) -> list[Action]:
        tell = self.group.tell
        disk = self.disk
        match action:
            case SaveState():
                tell(f"{self.name} saves term {action.term}, vote {action.vote or '-'}")
                self.unsaved.append(action)
                return self.save(node) if self.saves_at_once else []
            case Send(peer, message):
                self.group.post(Envelope(self.name, peer, message))
            case Ship():
                end = min(action.end, action.start + self.group.ship_bytes)
                records = tuple(disk.slice(action.start, end))
                self.group.post(Envelope(self.name, action.peer, action.head(end), records))
                return node.shipped(action, end)
            case Cut() | Accept() | Reset():
                self.changes.append(Change(action, self.records, self.received_at))
                return self.change(node) if self.changes_at_once else []
            case Commit(position):
                tell(f"{self.name} commits {position}")
                disk.commit = position
                self.group.committed(self, position)
            case BecomeLeader(term):
                tell(f"{self.name} leads term {term}")
                self.group.led(self.name, term)
            case BecomeFollower(term, leader):
                tell(f"{self.name} follows {leader or 'nobody'} in term {term}")
            case WriteTermRecord(term):
                return self.write(node, f"term{term}")
            case WriteMembers(members):
                return self.write(node, show_members(members), members)
            case PauseWrites(to):
                tell(f"{self.name} pauses writes: {to} takes over")
            case ResumeWrites():
                tell(f"{self.name} takes writes again")
            case Cleared():
                tell(f"{self.name} is cleared")
        return []

    def save(self, node: RaftNode) -> list[Action]:
        """Make the waiting states durable."""
        if not self.unsaved:
            return []
        last = self.unsaved[-1]
        self.unsaved = []
        self.disk.term, self.disk.vote = last.term, last.vote
        return node.state_saved(last.number)

    def change(self, node: RaftNode) -> list[Action]:
        """Carry out the changes of the log that wait."""
        found: list[Action] = []
        while self.changes:
            change = self.changes.pop(0)
            found += self.change_log(node, change)
        return found

    def change_log(self, node: RaftNode, change: Change) -> list[Action]:
        tell, disk = self.group.tell, self.disk
        match change.action:
            case Cut(position):
                tell(f"{self.name} cuts at {position}")
                disk.cut(position)
                return node.cut_done(position)
            case Accept() as accept:
                tell(f"{self.name} appends {accept.start}-{accept.end}")
                return self.append(node, accept, change)
            case Reset() as reset:
                tell(f"{self.name} starts its log anew at {reset.first}")
                self.disk = Disk(disk.term, disk.vote, reset.first, [], list(reset.spans))
                self.disk.members = [reset.members]
                self.disk.durable = self.disk.commit = reset.first
                return node.reset_done(reset.first)

    def append(self, node: RaftNode, action: Accept, change: Change) -> list[Action]:
        disk = self.disk
        assert disk.end == action.start
        skip = (action.start - change.received_at) // RECORD_BYTES
        records = change.records[skip:]
        assert disk.end + RECORD_BYTES * len(records) == action.end
        disk.extend(records, [span for span in action.spans if span.term])
        disk.members += action.members
        actions = node.appended(disk.end)
        return actions + self.flush(node) if self.flushes_at_once else actions

    def write(self, node: RaftNode, name: str, members: Members | None = None) -> list[Action]:
        disk = self.disk
        disk.extend([Record(node.term, name)], [TermSpan(node.term, disk.end)])
        if members is not None:
            disk.members.append(MemberRecord(disk.end, members))
        self.group.tell(f"{self.name} writes {name} up to {disk.end}")
        actions = node.grew(disk.end, members)
        return actions + self.flush(node) if self.flushes_at_once else actions

    def flush(self, node: RaftNode) -> list[Action]:
        if self.changes:
            return []
        self.disk.durable = self.disk.end
        return node.persisted(self.disk.end, node.cuts)

    def receive(self, envelope: Envelope) -> None:
        self.records = envelope.records
        self.received_at = getattr(envelope.message, "prev", 0)
        self.call(lambda node: node.step(envelope.sender, envelope.message))


class Group:
    """Members and the network between them."""

    def __init__(
        self, names: str = "a b c", *, config: RaftConfig | None = None, seed: int = 0
    ) -> None:
        self.config = config or RaftConfig()
        self.seed = seed
        self.ship_bytes = 1000
        self.network: list[Envelope] = []
        self.cut_links: set[frozenset[NodeId]] = set()
        self.lines: list[str] = []
        self.leaders: dict[int, NodeId] = {}
        self.history: list[Record] = []
        self.written = 0
        self.members: dict[NodeId, Member] = {}
        voters = Members(frozenset(names.split()))
        for name in sorted(voters.voters):
            self.join(name, Disk(members=[MemberRecord(0, voters)]))

    def join(self, name: NodeId, disk: Disk) -> Member:
        self.members[name] = Member(self, name, disk)
        self.members[name].start()
        return self.members[name]

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def post(self, envelope: Envelope) -> None:
        self.network.append(envelope)

    def __getitem__(self, name: NodeId) -> RaftNode:
        node = self.members[name].node
        assert node is not None
        return node

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.node is not None]

    @property
    def leader(self) -> RaftNode:
        """The only leader of the newest term."""
        leaders = [member.node for member in self.alive if member.node.role is Role.LEADER]
        return max(leaders, key=lambda node: node.term)

    # Time and messages.

    def tick(self, *names: NodeId, count: int = 1) -> None:
        for _ in range(count):
            for member in self.alive:
                if not names or member.name in names:
                    member.call(RaftNode.tick)

    def is_cut(self, envelope: Envelope) -> bool:
        return frozenset((envelope.sender, envelope.receiver)) in self.cut_links

    def deliver(self, envelope: Envelope) -> None:
        """Deliver a message, or lose it if its receiver cannot be reached."""
        self.network.remove(envelope)
        receiver = self.members.get(envelope.receiver)
        if receiver is not None and receiver.node is not None and not self.is_cut(envelope):
            receiver.receive(envelope)

    def settle(self) -> None:
        """Deliver messages in order until none is left."""
        for _ in range(10_000):
            if not self.network:
                return
            self.deliver(self.network[0])
        raise AssertionError("the group does not come to rest")

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()
            self.settle()

    def elect(self, name: NodeId) -> None:
        """Let a member campaign, and all others answer."""
        for _ in range(2 * self.config.election_ticks_max):
            if self[name].role is Role.LEADER:
                break
            self.tick(name)
            self.settle()
        assert self[name].role is Role.LEADER

    def send(self, name: NodeId, count: int = 1) -> None:
        """Let a leader write records."""
        for _ in range(count):
            self.written += 1
            text = f"m{self.written}"
            self.members[name].call(lambda node, text=text: self.members[name].write(node, text))

    def isolate(self, *names: NodeId) -> None:
        """Cut the links between these members and all others."""
        others = self.members.keys() - set(names)
        self.cut_links |= {frozenset((name, other)) for name in names for other in others}

    def heal(self) -> None:
        self.cut_links.clear()

    # Checks.

    def led(self, name: NodeId, term: int) -> None:
        """Election Safety: one leader per term."""
        assert self.leaders.setdefault(term, name) == name, f"two leaders in term {term}"

    def committed(self, member: Member, position: int) -> None:
        """State Machine Safety: everybody commits the same records."""
        log = member.disk
        known = RECORD_BYTES * len(self.history)
        start = min(position, max(known, log.first))
        overlap = log.slice(log.first, min(known, position)) if log.first < known else []
        assert overlap == self.history[log.first // RECORD_BYTES :][: len(overlap)]
        self.history += log.slice(start, position)

    def check(self) -> None:
        for member in self.alive:
            assert member.node is not None
            log = member.node.log
            assert log.first <= log.commit <= log.end
            if member.node.role is Role.LEADER:
                self.check_completeness(member)
        for one, other in self.pairs():
            check_matching(one.disk, other.disk)

    def pairs(self) -> Iterator[tuple[Member, Member]]:
        members = list(self.members.values())
        for index, one in enumerate(members):
            for other in members[index + 1 :]:
                yield one, other

    def check_completeness(self, member: Member) -> None:
        """Leader Completeness: the newest leader has everything that is committed."""
        assert member.node is not None
        if member.node.term < max(self.leaders):
            return
        kept = member.disk.records
        skipped = member.disk.first // RECORD_BYTES
        wanted = self.history[skipped:]
        assert kept[: len(wanted)] == wanted, f"{member.name} lacks committed records"


def check_matching(one: Disk, other: Disk) -> None:
    """Log Matching: a common record means a common log before it."""
    start = max(one.first, other.first)
    end = min(one.end, other.end)
    if start >= end:
        return
    pairs = list(zip(one.slice(start, end), other.slice(start, end), strict=True))
    equal = [mine.term == theirs.term for mine, theirs in pairs]
    last = max((index for index, same in enumerate(equal) if same), default=-1)
    assert all(mine == theirs for mine, theirs in pairs[: last + 1])


def show_members(members: Members) -> str:
    voters = ",".join(sorted(members.voters))
    learners = ",".join(sorted(members.learners))
    return f"[{voters}]" + (f"+[{learners}]" if learners else "")
