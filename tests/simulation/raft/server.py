"""The driver of a simulated node: it carries out actions on a simulated disk and network.

Writes to the log happen in the order of their actions, at once or late. States and the log are
synced some time after they are written, and only then is the node told. A restart keeps what is
durable, and any part of what is only written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketpost.errors import ReplicationError
from rocketpost.raft import actions as act
from rocketpost.raft import messages as msg
from rocketpost.raft.config import TICK_MS
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.raft.messages import MemberRecord, Members, TermSpan
from rocketpost.raft.node import RaftNode

from .checks import CORE, LOG_MATCHING, QUORUM_CONTACT, TERM_RECORD
from .disk import Log, Record, StateFile

if TYPE_CHECKING:
    from .group import Group


class Sent(NamedTuple):
    """A message on its way, and the records that it carries."""

    message: msg.Message
    records: tuple[Record, ...] = ()


class Saved(NamedTuple):
    """Term and vote, as a node has saved them."""

    term: int = 0
    vote: str | None = None
    number: int = 0


class Server:
    """A node with its disk. ``life`` counts its starts, so that calls of a dead process end."""

    def __init__(self, name: str, group: Group, *, members: Members) -> None:
        self.name = name
        self.group = group
        self.first_members = members
        self.log = Log()
        self.state: StateFile[Saved] = StateFile(Saved())
        self.suspicion = Suspicion.NONE
        self.lost: set[Record] = set()
        """Records that were durable before the disk was damaged; the node makes up for them."""

        self.life = 0
        self.tick_ms = TICK_MS
        self.sync_ms = 5
        self.write_ms = 0
        self.frozen_until_ms = 0
        self._do: dict[type, Callable[[Any], None]] = {
            act.SaveState: self._save_state,
            act.Send: self._send,
            act.Ship: self._ship,
            act.Accept: self._accept,
            act.Cut: self._cut,
            act.Reset: self._reset,
            act.Commit: self._commit,
            act.BecomeLeader: self._become_leader,
            act.BecomeFollower: self._become_follower,
            act.WriteTermRecord: self._write_term_record,
            act.WriteMembers: self._write_members,
            act.PauseWrites: self._pause_writes,
            act.ResumeWrites: self._resume_writes,
            act.Cleared: self._clear,
        }
        self._forget()

    def _forget(self) -> None:
        """Lose everything that is in memory only."""
        self.node: RaftNode | None = None
        self.is_leader = False
        self.is_paused = False
        self.has_failed = False
        self.term = 0
        self.leader: str | None = None
        self.commit = 0
        self.ticks = 0
        self.led_since = 0
        self.heard: dict[str, int] = {}
        self.terms_begun: set[int] = set()
        self._incoming: tuple[Record, ...] = ()
        self._actions: deque[act.Action] = deque()
        self._is_busy = False
        self._is_syncing = False
        self._disk_free_ms = 0
        self._state_free_ms = 0
        self._writes: deque[Callable[[], None]] = deque()

    def __str__(self) -> str:
        role = "down" if self.node is None else "leader" if self.is_leader else "follower"
        return (
            f"{self.name} {role} term={self.term} leader={self.leader} commit={self.commit} "
            f"end={self.log.end} durable={self.log.durable} suspicion={self.suspicion.name} "
            f"voters={''.join(sorted(self.members.voters))}"
        )

    # -- facts for checks

    @property
    def is_up(self) -> bool:
        return self.node is not None

    @property
    def running(self) -> RaftNode:
        assert self.node is not None
        return self.node

    @property
    def is_suspect(self) -> bool:
        return self.suspicion is not Suspicion.NONE

    @property
    def members(self) -> Members:
        """The newest configuration in the log."""
        changes = self.log.changes
        members = changes[-1].members if changes else None
        return self.first_members if members is None else members

    @property
    def safe_end(self) -> int:
        """Position up to which the node may promise to keep its log."""
        return self.log.end if self.group.is_async else self.log.durable

    def saved_vote(self) -> tuple[int, str | None]:
        return self.state.durable[:2]

    def keeps(self, record: Record) -> bool:
        """Tell whether a record survives whatever the flush mode promises to survive."""
        if record in self.lost:
            return True
        return self.log.has(record) if self.group.is_async else self.log.has_durable(record)

    # -- life

    def start(self) -> None:
        """Start the process with what is on the disk."""
        assert self.node is None
        self.life += 1
        self.log.settle()
        saved = self.state.durable
        self.node = RaftNode(
            self.name,
            config=self.group.config,
            chance=self.group.new_chance(),
            term=saved.term,
            vote=saved.vote,
            first=self.log.first,
            end=self.log.end,
            commit=self.log.first,
            spans=[TermSpan(*span) for span in self.log.spans()],
            members=[MemberRecord(0, self.first_members), *member_records(self.log.changes)],
            suspicion=self.suspicion,
        )
        self.term = saved.term
        self.commit = self.log.first
        self.group.note(self.name, "starts: %s", self)
        self.group.scheduler.after(
            int(self.group.rng.random() * self.tick_ms), self._tick_again, self.life
        )

    def start_if_down(self) -> None:
        if self.node is None:
            self.start()

    def stop(self, *, power: bool) -> None:
        """Kill the process; with the power, bytes that are not durable may be lost too."""
        assert self.node is not None
        self.life += 1
        self.state.lose(self.group.rng)
        if power:
            self.log.lose(self.group.rng)
        self._forget()
        self.group.note(self.name, "stops%s: %s", " without power" if power else "", self)

    def heal(self) -> None:
        """End all faults of this node."""
        self.tick_ms = TICK_MS
        self.sync_ms = 2
        self.write_ms = 0
        self.frozen_until_ms = 0
        if self.has_failed:
            self.stop(power=False)
        self.start_if_down()

    def damage(self) -> None:
        """Lose durable bytes; the node notices that when it is started."""
        assert self.node is None
        borders = [0, *(record.end for record in self.log.records)]
        position = self.group.rng.choice([at for at in borders if at >= self.log.first])
        self.lost.update(self.log.between(position, self.log.end))
        self.log.cut(position)
        self.suspicion = Suspicion.LOG
        if self.group.rng.random() < 0.3:
            self.suspicion = Suspicion.STATE
            self.state = StateFile(Saved())
            self.group.checks.forget_votes(self.name)
        self.group.note(self.name, "is damaged at %s: %s", position, self.suspicion.name)

    def trim(self) -> None:
        """Delete the oldest bytes, up to a random position that is committed and durable."""
        limit = min(self.commit, self.log.durable)
        borders = [r.end for r in self.log.records if self.log.first < r.end <= limit]
        if borders:
            self.log.first = self.group.rng.choice(borders)
            self.call(self.running.trimmed, self.log.first)

    def fail_disk(self) -> None:
        """Let a sync fail: nothing becomes durable from now on, although later syncs succeed."""
        assert self.node is not None
        self.has_failed = True
        self.call(self.node.failed)

    # -- inputs

    def call(self, method: Callable[..., list[act.Action]], *args: Any) -> None:
        """Call the node, and carry out what it asks for, in order."""
        try:
            self._actions += method(*args)
        except (AssertionError, LookupError) as error:
            self._crash(error)
            return
        if self._is_busy:
            return
        self._is_busy = True
        life = self.life
        while self._actions and self.life == life:
            action = self._actions.popleft()
            if self.group.trace is not None:
                self._note_action(action)
            self._do[type(action)](action)
        if self.life == life:
            self._is_busy = False

    def _crash(self, error: Exception) -> None:
        """Report a node that breaks its own rules. If that is not wanted, it starts again."""
        self.group.checks.fail(CORE, f"{self.name}: {error!r}")
        self.stop(power=False)
        self.group.later(TICK_MS, self.start_if_down)

    def _tick_again(self, life: int) -> None:
        if life != self.life:
            return
        if (wait_ms := self.frozen_until_ms - self.group.scheduler.now_ms) > 0:
            self.group.scheduler.after(wait_ms, self._tick_again, life)
            return
        self.tick()
        self.group.scheduler.after(self.tick_ms, self._tick_again, life)

    def tick(self) -> None:
        if self.node is None:
            return
        self.ticks += 1
        self.call(self.node.tick)
        if self.is_leader:
            self._check_contact()

    def _check_contact(self) -> None:
        since = self.ticks - self.group.contact_ticks
        if self.led_since >= since:
            return
        voters = self.members.voters
        near = sum(self.heard.get(peer, 0) >= since for peer in voters) + (self.name in voters)
        if 2 * near <= len(voters):
            self.group.checks.fail(
                QUORUM_CONTACT, f"{self.name} leads term {self.term}, heard {self.heard}"
            )

    def receive(self, source: str, sent: Sent) -> None:
        if self.node is None:
            return
        if (wait_ms := self.frozen_until_ms - self.group.scheduler.now_ms) > 0:
            self.group.scheduler.after(wait_ms, self.receive, source, sent)
            return
        if self.group.trace is not None:
            self.group.note(self.name, "< %s %s %s", source, sent.message, sent.records or "")
        self.heard[source] = self.ticks
        self._incoming = sent.records
        try:
            self.call(self.node.step, source, sent.message)
        except ReplicationError as error:
            self._crash(error)

    def write(self, count: int) -> None:
        """Take messages of producers, if this node leads."""
        if self.is_leader and not self.is_paused and not self.has_failed:
            self._plan_write(self._write_messages, self.term, count)

    def _write_messages(self, term: int, count: int) -> None:
        if self.is_leader and self.term == term:
            for _ in range(count):
                self._make_record()
            self._grew()

    def lose_link(self, peer: str) -> None:
        if self.node is not None:
            self.call(self.node.link_down, peer)
        if self.node is not None:
            self.call(self.node.link_up, peer)

    def transfer(self, to: str) -> None:
        assert self.node is not None
        self._try(self.node.transfer, to)

    def propose_change(self) -> None:
        """Ask for a change of members that makes some sense."""
        assert self.node is not None
        chance = self.group.rng
        change = MemberChange(chance.choice(list(ChangeKind)), chance.choice(self.group.names))
        voters = self.members.voters
        is_small = len(voters) <= 3 and self.group.has_damage  # two do not survive a suspect one
        if not (is_small and change.kind is ChangeKind.REMOVE and change.node in voters):
            self._try(self.node.propose_members, change)

    def _try(self, method: Callable[..., list[act.Action]], argument: object) -> None:
        try:
            self.call(method, argument)
        except ReplicationError as error:
            self.group.note(self.name, "refuses %s: %s", argument, error)

    # -- the log

    def _plan_write(self, write: Callable[..., None], *args: Any) -> None:
        """Write to the log after all earlier writes, now or after the time of the disk."""
        now_ms = self.group.scheduler.now_ms
        delay_ms = int(self.group.rng.random() * (self.write_ms + 1)) if self.write_ms else 0
        self._disk_free_ms = max(self._disk_free_ms, now_ms + delay_ms)
        if self._disk_free_ms == now_ms and not self._writes:
            write(*args)
            return
        self._writes.append(lambda: write(*args))
        self.group.scheduler.after(self._disk_free_ms - now_ms, self._write_next, self.life)

    def _write_next(self, life: int) -> None:
        if life == self.life:
            self._writes.popleft()()

    def _make_record(self, members: Members | None = None) -> Record:
        record = Record(
            self.group.next_record(),
            self.term,
            before=self.log.last,
            end=self.log.end + self.group.rng.choice([10, 100, 700]),
            members=members,
        )
        if self.term not in self.terms_begun:
            self.group.checks.fail(TERM_RECORD, f"{self.name} writes {record} first")
        self.group.checks.wrote(self, record)
        self.log.append(record)
        self.group.note(self.name, "writes %s", record)
        return record

    def _grew(self, members: Members | None = None) -> None:
        assert self.node is not None
        if members is None:
            self.call(self.node.grew, self.log.end)
        else:
            self.call(self.node.grew, self.log.end, members)
        self._sync()

    def _write_term_record(self, action: act.WriteTermRecord) -> None:
        self._plan_write(self._begin_term, action.term)

    def _begin_term(self, term: int) -> None:
        if self.is_leader and self.term == term:
            self.terms_begun.add(term)
            self._make_record()
            self._grew()

    def _write_members(self, action: act.WriteMembers) -> None:
        self._plan_write(self._change_members, self.term, action.members)

    def _change_members(self, term: int, members: Members) -> None:
        if self.is_leader and self.term == term:
            self.group.checks.changed(self, members)
            self._make_record(members)
            self._grew(members)

    def _accept(self, action: act.Accept) -> None:
        records = [r for r in self._incoming if action.start <= r.start and r.end <= action.end]
        self._plan_write(self._append, action, records)

    def _append(self, action: act.Accept, records: list[Record]) -> None:
        assert self.node is not None
        for record in records:
            self.group.checks.appended(self, record)
            self.log.append(record)
        if self.log.end != action.end:
            self.group.checks.fail(LOG_MATCHING, f"{self.name} ends at {self.log.end}: {action}")
        if list(action.members) != member_records(records):
            self.group.checks.fail(LOG_MATCHING, f"{self.name} has other members: {action}")
        self.call(self.node.appended, self.log.end)
        self._sync()

    def _cut(self, action: act.Cut) -> None:
        self._plan_write(self._truncate, action.position)

    def _truncate(self, position: int) -> None:
        assert self.node is not None
        self.group.checks.cut(self, position)
        self.log.cut(position)
        self.call(self.node.cut_done, position)

    def _reset(self, action: act.Reset) -> None:
        self._plan_write(self._replace, action)

    def _replace(self, action: act.Reset) -> None:
        """Take over the committed log before ``first``: it stands for the leader's tables."""
        self.log.replace(self.group.checks.chain, action.first)
        self.group.checks.committed_to(self, action.first)
        self.commit = action.first
        self.call(self.running.reset_done, action.first)

    # -- syncs

    def _sync(self) -> None:
        """Have the log synced, unless a sync is under way; that will be followed by another."""
        if self.node is None:
            return
        if self.group.is_async:
            self.call(self.running.persisted, self.log.end, self.running.cuts)
        elif not self._is_syncing and self.log.durable < self.log.end:
            self._begin_sync()

    def _begin_sync(self) -> None:
        self._is_syncing = True
        self.log.begin_sync()
        self.group.later(self.sync_ms, self._synced, self.life, self.log.end, self.running.cuts)

    def _synced(self, life: int, end: int, cuts: int) -> None:
        """Report a sync as it began: the node knows what was cut since."""
        if life != self.life:
            return
        self._is_syncing = False
        if not self.has_failed:
            self.log.end_sync()
        self.group.note(self.name, "has synced the log to %s", self.log.durable)
        is_outdated = cuts != self.running.cuts
        self.call(self.running.persisted, end, cuts)
        if self.life != life or self._is_syncing:
            return
        if is_outdated:
            self._begin_sync()
        else:
            self._sync()

    def _save_state(self, action: act.SaveState) -> None:
        self.state.write(Saved(action.term, action.vote, action.number))
        now_ms = self.group.scheduler.now_ms
        delay_ms = 1 + int(self.group.rng.random() * self.sync_ms)
        self._state_free_ms = max(self._state_free_ms, now_ms + delay_ms)
        self.group.scheduler.after(self._state_free_ms - now_ms, self._state_saved, self.life)

    def _state_saved(self, life: int) -> None:
        if life != self.life:
            return
        saved = self.state.sync(is_kept=not self.has_failed)
        self.group.note(self.name, "has saved %s", saved)
        self.call(self.running.state_saved, saved.number)

    # -- the network

    def _send(self, action: act.Send) -> None:
        message = action.message
        if type(message) is msg.AppendReply:
            self.group.checks.acknowledged(self, message.term, message.match)
        elif type(message) is msg.VoteReply:
            if message.granted:
                self.group.checks.voted(self, message.term, action.peer)
        elif type(message) is msg.Vote:
            self.group.checks.voted(self, message.term, self.name)
        self.group.network.send(self.name, action.peer, Sent(message))

    def _ship(self, action: act.Ship) -> None:
        records = self.log.between(action.start, action.end)
        records = records[: self.group.rng.choice([1, 3, 100])]
        if not records or records[0].start != action.start or action.start < self.log.first:
            self._crash(
                AssertionError(f"{action} from a log of [{self.log.first}, {self.log.end})")
            )
            return
        head = action.head(records[-1].end)
        self.group.network.send(self.name, action.peer, Sent(head, tuple(records)))
        self.call(self.running.shipped, action, head.end)

    # -- roles

    def _commit(self, action: act.Commit) -> None:
        self.group.checks.committed_to(self, action.position)
        self.commit = action.position

    def _become_leader(self, action: act.BecomeLeader) -> None:
        self.is_leader, self.is_paused = True, False
        self.term, self.leader = action.term, self.name
        self.led_since = self.ticks
        self.group.checks.elected(self, action.term)

    def _become_follower(self, action: act.BecomeFollower) -> None:
        self.is_leader, self.is_paused = False, False
        self.term, self.leader = action.term, action.leader

    def _pause_writes(self, _action: act.PauseWrites) -> None:
        self.is_paused = True

    def _resume_writes(self, _action: act.ResumeWrites) -> None:
        self.is_paused = False

    def _clear(self, _action: act.Cleared) -> None:
        self.suspicion = Suspicion.NONE
        self.lost.clear()

    def _note_action(self, action: act.Action) -> None:
        self.group.note(self.name, "> %s", action)


def member_records(records: Iterable[Record]) -> list[MemberRecord]:
    """Return the configurations that records state."""
    return [MemberRecord(r.end, r.members) for r in records if r.members is not None]
