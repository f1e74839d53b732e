"""A member of a group with its real state machine and store, on a simulated disk.

The driver is the smallest that keeps the contract of ``raft.node``. Messages go through the codec.
What a process does in its own time is a step of the simulation here: saving the state, changing the
log, flushing it, saving progress.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from rocketpost.codec.group.frames import RaftDecoder, RaftEncoder
from rocketpost.codec.group.questions import Piece, Question
from rocketpost.errors import ReplicationError, StoreBroken, StoreError, StoreFull
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration
from rocketpost.model.members import Member as GroupMember
from rocketpost.raft import actions
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.election import Role
from rocketpost.raft.members import MemberChange
from rocketpost.raft.messages import Append, Members, SnapshotOffer, TermSpan
from rocketpost.raft.node import RaftNode
from rocketpost.server.group.life.beginning import Beginning
from rocketpost.server.group.node_opening import SUSPICIONS
from rocketpost.server.group.roster import record_of
from rocketpost.store.config import StoreConfig
from rocketpost.store.descriptors import may_pass
from rocketpost.store.member.group_records import draft_members, draft_term
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.member.reset import reset_log_blocking
from rocketpost.store.retention import CleanPlan
from rocketpost.testing.sim.disk import SimulatedDisk

from ..store.world import HOST, Clock, World, formatted

GROUP = "group"
CONFIG = RaftConfig(window_bytes=20_000)


class Parcel(NamedTuple):
    """A frame under way."""

    sender: str
    receiver: str
    frame: bytes


class Change(NamedTuple):
    """A change of the log that waits for its turn."""

    action: actions.Cut | actions.Accept
    body: bytes
    start: int


class Sent(NamedTuple):
    """A message that a producer gave to a leader, and the place that it got."""

    term: int
    position: int
    end: int
    body: bytes


class Server:
    """One member: its disk survives, its node and store do not."""

    def __init__(
        self,
        name: str,
        founders: list[str],
        config: StoreConfig,
        network: list[Parcel],
        find: Callable[[str], Server],
    ) -> None:
        self.name = name
        self._find = find
        self.config = config
        self.network = network
        self.disk: SimulatedDisk = formatted()
        self.is_eager = True
        """Whether state and log are changed at once."""
        self.is_harmed = False
        """Whether the disk was damaged, and the member has not got its log back yet."""
        self.is_replaced = name not in founders
        """Whether it has an empty disk, and may have had another one."""
        self.flips: dict[int, int] = {}
        """Bytes of the log that were changed on the disk, as they were before."""
        self.counts: Counter[str] = Counter()
        self.batch_bytes = 3000
        self.sent: list[Sent] = []
        """Messages of this process that are not committed yet."""
        self.acknowledged: list[Sent] = []
        """Messages that producers were told about since the last look."""
        self.commits: deque[int] = deque()
        """Commit positions that nobody has looked at yet."""
        self.elected: deque[int] = deque()
        self.member: MemberStore | None = None
        self._founders = founders
        self._node: RaftNode | None = None
        self._encoder = RaftEncoder(GROUP)
        self._states: list[actions.SaveState] = []
        self._changes: list[Change] = []
        self._starts = 0
        self.wants_log_of: str | None = None
        """The leader whose log is to replace this member's."""

    @property
    def is_up(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> RaftNode:
        assert self._node is not None
        return self._node

    @property
    def running(self) -> MemberStore:
        assert self.member is not None
        return self.member

    @property
    def is_leading(self) -> bool:
        return self._node is not None and self._node.role is Role.LEADER

    def log(self) -> bytes:
        """Return the bytes of the log, with zeros for those that are deleted.

        It needs no file operation, which could fail.
        """
        store = self.running.store
        end = store.written_position
        parts = [
            self.disk.read_bytes(segment.path)[: max(0, end - segment.start)]
            for segment in store.segments.all()
        ]
        log = bytearray(bytes(store.first_position) + b"".join(parts))
        for position, byte in list(self.flips.items()):
            if position >= len(log) or position < store.first_position or log[position] == byte:
                del self.flips[position]  # it was repaired, or is gone
            else:
                log[position] = byte
        return bytes(log)

    # -- life

    def start(self) -> None:
        """Open the store, and begin with what it says."""
        self.member = member = self._open()
        store, state = member.store, member.state
        if not member.state.configurations:
            voters = tuple(GroupMember(name, f"{name}:1") for name in self._founders)
            member.save_members_blocking([Configuration(0, voters)])
        if self.is_replaced and member.is_new:
            member.doubt_blocking()
        state = member.state
        store.flush_blocking()
        self._starts += 1
        self._node = RaftNode(
            self.name,
            config=CONFIG,
            chance=random.Random(f"{self.name} {self._starts}"),
            term=state.term,
            vote=state.vote,
            first=store.first_position,
            end=store.end_position,
            commit=max(state.commit, store.confirmed_position),
            spans=[TermSpan(*span) for span in member.spans],
            members=[record_of(each) for each in state.configurations],
            suspicion=SUSPICIONS[state.suspect],
        )

    def _open(self) -> MemberStore:
        """Open the store; a damaged one that says so is replaced by an empty one."""
        try:
            member = MemberStore.open_blocking(self.config, clock=Clock(), files=self.disk)
        except StoreError:
            if not self.is_harmed or self.is_replaced or self.disk.fault is not None:
                raise
        else:
            self.is_harmed = self.is_harmed or bool(self.flips and member.suspicions)
            is_known = self.is_harmed or self.is_replaced or not member.suspicions
            assert is_known, f"suspect without a reason: {member.suspicions}"
            return member
        self.is_replaced = True
        self.disk = formatted()
        self.flips.clear()
        return MemberStore.open_blocking(self.config, clock=Clock(), files=self.disk)

    def stop(self, disk: SimulatedDisk) -> None:
        """Lose the process; ``disk`` is what is left of the disk."""
        member, self.member, self._node = self.member, None, None
        self.disk = disk
        self._states, self._changes, self.sent = [], [], []
        self.wants_log_of = None
        self.commits.clear()
        self.elected.clear()
        self.acknowledged = []
        if member is not None:
            with contextlib.suppress(OSError, StoreError):
                member.store.close_blocking()

    def fail(self) -> None:
        """Do nothing more but run on: a write or flush has failed."""
        self._states, self._changes, self.sent = [], [], []
        self.act(self.node.failed())

    # -- inputs

    def tick(self) -> None:
        self.act(self.node.tick())

    def receive(self, parcel: Parcel) -> None:
        ((message, body),) = RaftDecoder(GROUP).feed(parcel.frame)
        assert not isinstance(message, Question | Piece)
        if self.running.needs_new_log and isinstance(message, Append | SnapshotOffer):
            self.begin_again(parcel.sender)
            return
        start = message.prev if isinstance(message, Append) else 0
        self.act(self.node.step(parcel.sender, message), body, start)

    def begin_again(self, leader_name: str) -> None:
        """Replace the log by an empty one where that of a leader begins, if there is need."""
        leader = self._find(leader_name)
        if not leader.is_leading:
            return
        log, store = leader.node.log, leader.running.store
        spans = [(term, start) for term, start in log.terms.before(log.first)[-1:]]
        beginning = Beginning(log.first, spans, 0, [])
        is_needed = self.running.needs_new_log or beginning.is_needed_by(self.node.log)
        record = log.members.at(log.first)
        members = [GroupMember(each, f"{each}:1") for each in sorted(record.members.voters)]
        members += [GroupMember(each, f"{each}:1", False) for each in record.members.learners]
        starts: dict[str, dict[int, int]] = {}
        for queue in store.queues if log.first else ():
            starts.setdefault(queue.topic, {})[queue.queue_id] = int(queue.first_at(log.first))
        self.stop(self.disk)
        if is_needed:
            self.counts["new logs late" if log.first else "new logs"] += 1
            self.flips.clear()
            reset_log_blocking(
                self.config,
                self.disk,
                first=log.first,
                spans=tuple(spans),
                members=Configuration(record.position, tuple(members)),
                starts=starts,
                on_reset=lambda _: None,
            )
        self.start()

    def propose(self, change: MemberChange) -> None:
        """Change the members, if this one leads and may."""
        with contextlib.suppress(ReplicationError):
            self.act(self.node.propose_members(change))
            self.counts["changes"] += 1

    def expire(self) -> None:
        """Delete the oldest segment, if everything in it is committed and on disk."""
        store, node = self.running.store, self.node
        segments = store.segments.all()
        store.save_blocking()
        self.save_members()
        if self._changes or len(segments) < 3 or segments[1].start > node.commit:
            return
        plan = CleanPlan((Position(segments[0].start),), "a test", None)
        store.cleaning.apply(plan)
        while store.cleaning.trim_queues():
            pass
        store.cleaning.unlink_blocking()
        if store.first_position > node.log.first:
            self.counts["expired"] += 1
            self.act(node.trimmed(store.first_position))
            try:
                self.running.forget_terms_blocking()
            except OSError as error:
                if not may_pass(error):
                    raise

    def save_members(self) -> None:
        self.running.save_members_blocking(
            Configuration(
                position,
                tuple(GroupMember(each, f"{each}:1") for each in sorted(members.voters))
                + tuple(GroupMember(each, f"{each}:1", False) for each in sorted(members.learners)),
            )
            for position, members in self.node.log.members.records
        )

    def send(self, world: World, rng: random.Random) -> None:
        """Take messages of producers, as a leader whose term record is committed."""
        node, store = self.node, self.running.store
        if not self.is_leading or node.log.terms.term_before(node.commit) != node.term:
            return
        drafts = [world.draft(rng) for _ in range(rng.randrange(1, 5))]
        taken = []
        try:
            for sent, draft in drafts:
                place = store.append(draft)
                taken.append(Sent(node.term, place.position, place.end, sent.body))
        except StoreBroken:
            raise
        except StoreError:
            pass  # no room; what was taken before stays
        store.commit()
        self.sent += taken
        if store.written_position > node.log.end:
            self.act(node.grew(store.written_position))

    def save(self) -> None:
        """Make the newest term and vote durable."""
        if self._states:
            newest, self._states = self._states[-1], []
            self.running.save_vote_blocking(newest.term, newest.vote)
            self.act(self.node.state_saved(newest.number))

    def change(self) -> None:
        """Carry out the next change of the log."""
        if self._changes:
            self._change(self._changes.pop(0))

    def flush(self) -> None:
        """Flush the log, and say so."""
        if not self._changes:
            store = self.running.store
            cuts = self.node.cuts
            store.flush_blocking()
            end = min(store.durable_position, self.node.log.end)
            self.act(self.node.persisted(end, cuts))

    def save_progress(self) -> None:
        if not self._changes:
            node = self.node
            self.running.save_progress_blocking(node.commit, node.log.persisted)
            self.save_members()

    def save_checkpoint(self) -> None:
        if not self._changes:
            self.running.store.save_blocking()

    # -- actions

    def act(self, found: list[actions.Action], body: bytes = b"", start: int = 0) -> None:
        waiting = deque(found)
        while waiting:
            waiting.extend(self._act(waiting.popleft(), body, start))

    def _act(self, action: actions.Action, body: bytes, start: int) -> list[actions.Action]:
        match action:
            case actions.SaveState():
                self._states.append(action)
                if self.is_eager:
                    self.save()
            case actions.Send(peer, message):
                self._post(peer, self._encoder.encode(message))
            case actions.Ship():
                return self._ship(action)
            case actions.Cut() | actions.Accept():
                self._changes.append(Change(action, body, start))
                while self.is_eager and self._changes:
                    self.change()
            case actions.WriteTermRecord(term):
                return self._write_term(term)
            case actions.Commit(position):
                self.commits.append(position)
                self._show()
                self._acknowledge(position)
            case actions.BecomeLeader(term):
                self.elected.append(term)
            case actions.BecomeFollower():
                self.sent = []
            case actions.Cleared():
                self.running.clear_suspicion_blocking()
                self.is_harmed = self.is_replaced = False
            case actions.WriteMembers(members):
                return self._write_members(members)
            case actions.Reset():
                self.wants_log_of = self.node.leader
            case actions.PauseWrites() | actions.ResumeWrites():
                pass
            case _:
                raise AssertionError(f"nobody asks for {action}")
        return []

    def _write_members(self, members: Members) -> list[actions.Action]:
        if not self.is_leading:
            return []
        store = self.running.store
        described = [GroupMember(each, f"{each}:1") for each in sorted(members.voters)]
        described += [GroupMember(each, f"{each}:1", False) for each in sorted(members.learners)]
        try:
            store.append(draft_members(tuple(described), host=HOST, now_ms=1))
            store.commit()
        except StoreBroken:
            raise
        except StoreError:
            return self.node.members_refused()
        return self.node.grew(store.written_position, members)

    def _post(self, peer: str, frame: bytes) -> None:
        self.network.append(Parcel(self.name, peer, frame))

    def _ship(self, ship: actions.Ship) -> list[actions.Action]:
        if self.node.progress.get(ship.peer) is None:
            return []
        store = self.running.store
        segment_bytes = self.config.segment_bytes
        limit = min(ship.end, ship.start - ship.start % segment_bytes + segment_bytes)
        view = store.view(ship.start, limit - ship.start)
        assert view is not None
        end = limit
        starts, _ = record_starts(view, 0, count_max=2**31 - 1, bytes_max=2**31 - 1)
        ends = [at for at in [*starts, limit - ship.start] if 0 < at <= self.batch_bytes]
        if limit - ship.start > self.batch_bytes and ends:
            end = ship.start + ends[-1]
        frame = self._encoder.encode(ship.head(end), end - ship.start)
        self._post(ship.peer, frame + bytes(view[: end - ship.start]))
        return self.node.shipped(ship, end)

    def _write_term(self, term: int) -> list[actions.Action]:
        member = self.running
        node, store = self.node, member.store
        if not self.is_leading or node.term != term:
            return []
        start = node.log.terms.start_of(term)
        try:
            if start is None:
                member.begin_term_blocking(term, self.name, HOST)
            else:
                store.append(draft_term(term, self.name, start=start, host=HOST, now_ms=1))
            store.commit()
        except (OSError, StoreFull) as error:
            if isinstance(error, OSError) and not may_pass(error):
                raise
            self.counts["terms without room"] += 1
            return node.step_down()
        return node.grew(store.written_position)

    def _change(self, change: Change) -> None:
        member, node = self.running, self.node
        if isinstance(change.action, actions.Cut):
            member.cut_blocking(change.action.position)
            self.act(node.cut_done(change.action.position))
            return
        accept = change.action
        data = change.body[accept.start - change.start :]
        try:
            member.note_terms_blocking(accept.spans)
            end = member.store.append_raw(Position(accept.start), data)
        except StoreBroken:
            raise
        except (OSError, StoreError) as error:
            if isinstance(error, OSError) and not may_pass(error):
                raise
            end = Position(accept.start)  # no room: the leader sends it again
        self.act(node.appended(end))
        self._show()

    def _show(self) -> None:
        store = self.running.store
        position = Position(min(self.node.commit, store.written_position))
        if self._changes or position <= store.confirmed_position:
            return
        store.set_ceiling(position)
        store.confirm(position)

    def _acknowledge(self, position: int) -> None:
        """Answer producers."""
        if self.is_leading:
            done = [each for each in self.sent if each.end <= position]
            assert all(each.term == self.node.term for each in done)
            self.acknowledged += done
            self.sent = [each for each in self.sent if each.end > position]
