"""A running member of a group: its state machine, its log, its links, and its office.

``raft.node`` decides. This module carries out its actions in their order, and tells it what
happened. Inputs may arrive meanwhile: their actions are carried out after the earlier ones.

**Invariants:**

- Before the node may step down, everything that the leader has appended is written and known to it.
- When the node does not lead any more, the log writer has stopped before the next action.
- Bytes of another leader are appended, and the log is cut, only while no term of office as leader
  is open.
- A broker serves as leader only when the record that begins its term is committed. So everything
  in its log is committed and visible by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence

from rocketpost.codec.bodies.group_status import GroupStatus
from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import History
from rocketpost.codec.group.questions import Piece, Question, Subject
from rocketpost.errors import ReplicationError, StoreError
from rocketpost.model.clock import Clock
from rocketpost.raft import actions
from rocketpost.raft.config import TICK_MS, RaftConfig
from rocketpost.raft.election import Role
from rocketpost.raft.members import MemberChange
from rocketpost.raft.messages import Append, SnapshotOffer
from rocketpost.server.group.broker_side import BrokerSide, MemberSettings
from rocketpost.server.group.chunk import Chunk, with_bytes
from rocketpost.server.group.life.beginning import Beginning
from rocketpost.server.group.life.handover import Handover
from rocketpost.server.group.life.log_scrub import LogScrub
from rocketpost.server.group.life.member_change import MemberChanges
from rocketpost.server.group.life.past import Past
from rocketpost.server.group.life.questions import Questions
from rocketpost.server.group.link_values import Framing, Seat
from rocketpost.server.group.links import GroupLinks
from rocketpost.server.group.member_log import MemberLog
from rocketpost.server.group.node_opening import RAFT, open_node
from rocketpost.server.group.office import Leadership, Office
from rocketpost.server.group.own_records import OwnRecords
from rocketpost.server.group.roster import Roster
from rocketpost.server.group.state_saver import StateSaver
from rocketpost.server.group.status import MemberFacts, group_status, replication_status
from rocketpost.server.replication.status import ReplicationStatus
from rocketpost.server.settings.group import GroupConfig
from rocketpost.server.writer.acknowledgement_rules import Committed
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)


class GroupMember:
    """One broker's part in its group. Owned by the loop.

    Args:
        config: The group, and this member's place in it.
        store: This member's store.
        settings: Settings of the broker.
        clock: The clock.
        framing: Encodes and decodes messages.
        broker: The services of its broker.
        raft: Times and sizes of the state machine.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        store: MemberStore,
        settings: MemberSettings,
        clock: Clock,
        framing: Framing,
        broker: BrokerSide,
        raft: RaftConfig | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._store = store
        self._clock = clock
        self._broker = broker
        self._failure = ""
        self._log = MemberLog(
            store,
            node=config.node,
            host=settings.host,
            clock=clock,
            flush_mode=settings.flush_mode,
            on_safe=self._note_safe,
            on_failed=self._fail,
        )
        self.roster = Roster(config, store)
        """The members of the group, with their addresses."""
        self.node = open_node(config, store, self.roster.records, raft or RAFT)
        """The state machine; not to be changed by others."""
        self._past = Past(
            self.node,
            store,
            others=config.others,
            roster=self.roster,
            carry_out=self._carry_out,
            later=self._later,
        )
        self._office = Office(
            lead=broker.lead, follow=broker.follow, allow_changes=self._log.allow_changes
        )
        self._records = OwnRecords(
            self.node, self._log, office=self._office, roster=self.roster, carry_out=self._carry_out
        )
        self._saver = StateSaver(
            store,
            progress=lambda: (self.node.commit, self.node.log.persisted),
            on_saved=lambda number: self._carry_out(self.node.state_saved(number)),
            on_failed=self._fail,
        )
        self.links = GroupLinks(
            Seat(
                config.group,
                config.node,
                settings.equal,
                settings.address,
                self._past.history,
                self._past.recall,
            ),
            framing=framing,
            on_message=self._receive,
            on_up=lambda peer: self._carry_out(self.node.link_up(peer)),
            on_down=lambda peer: self._carry_out(self.node.link_down(peer)),
            on_history=self._note_history,
            protection=settings.protection,
        )
        """The links to all other members."""
        self._link_members()
        self.questions = Questions(self.links.send)
        """Asks other members, and answers them."""
        self.scrub = LogScrub(
            self.node,
            store.store,
            store.old_log,
            questions=self.questions,
            is_up=self.links.is_up,
            config=settings.store,
        )
        """Compares old log with other members."""
        self.questions.sources = {
            Subject.BEGINNING: self._answer_beginning,
            Subject.DIGEST: self.scrub.answer_digest,
            Subject.LOG: self.scrub.answer_log,
        }
        self._changes = MemberChanges(self.node, carry_out=self._carry_out)
        self._handover = Handover(self.node, is_up=self.links.is_up, carry_out=self._carry_out)
        self._actions: deque[actions.Action | Chunk] = deque()
        self._is_acting = False
        self._beginnings: dict[str, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Life.

    async def bind(self) -> None:
        """Listen for the other members.

        Raises:
            ConfigError: The address cannot be bound.
        """
        own = self._config.own
        await self.links.incoming.start(own.host, own.port)
        self._log.begin()

    async def run(self) -> None:
        """Take part in the group until cancelled.

        Raises:
            StoreError: A term of office cannot be opened.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.links.run(), name="links")
            group.create_task(self._saver.run(), name="hard state")
            group.create_task(self._office.run(), name="office")
            group.create_task(self._keep_time(), name="ticks")
            group.create_task(self._past.settle_founding(), name="founding")
            group.create_task(self.scrub.run(), name="comparison of old log")

    async def close(self) -> None:
        """Stop taking part; the term of office is closed by its owner."""
        self.links.close()
        self._office.follow("the broker is shutting down")
        await self.questions.close()
        await self._log.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._saver.close()
        self._store.close_state()

    def set_listeners(self, listeners: Sequence[ArrivalListener]) -> None:
        """Set the listeners for messages that become visible while this broker does not lead."""
        self._log.arrival_listeners = listeners

    # State.

    @property
    def is_leading(self) -> bool:
        """Whether this member leads and serves clients, or is about to."""
        return self._office.leadership is not None

    @property
    def needs_new_log(self) -> bool:
        """Whether the log is damaged, so that it must be replaced by that of a leader."""
        return self._store.needs_new_log

    @property
    def port(self) -> int:
        """The bound port."""
        return self.links.incoming.port

    def member_status(self) -> GroupStatus:
        """Return this member's view of its group."""
        facts = MemberFacts(
            group=self._config.group,
            problem=self._failure or self._past.obstacle,
            suspicions=self._store.suspicions,
            scrub=self.scrub.describe(),
        )
        return group_status(self.node, self.roster, self.links, facts)

    def status(self) -> ReplicationStatus:
        """Return the state of replication, as ``haStatus`` shows it."""
        return replication_status(self.node, self.links, self._failure)

    # Administration.

    async def hand_over(self, to: str = "") -> None:
        """Let another member lead, if this one does; without a name, the one with most of the log.

        Raises:
            ReplicationError: It does not lead any more, or the other one did not take over.
        """
        leadership = self._office.leadership
        if leadership is not None:
            leadership.before_handover()
            leadership.hold(True)
        self._write_appended()
        try:
            await self._handover.run(to)
        except ReplicationError:
            if leadership is not None and leadership.is_valid:
                leadership.hold(False)
            raise

    async def change_members(self, change: MemberChange, address: str = "") -> None:
        """Change the members by one, and return when that is committed.

        Raises:
            ReplicationError: This is not possible now; the text says why.
        """
        if self.node.role is Role.LEADER and self._office.writer is None:
            raise ReplicationError("the leader is opening its term; try again")
        if address:
            self.roster.expect(change.node, address)
        self._write_appended()
        await self._changes.run(change)

    async def _answer_beginning(self, peer: str, begin: int, end: int) -> bytes:
        if self.node.role is not Role.LEADER:
            raise ReplicationError(f"{self.node.node} does not lead")
        if not begin or peer not in self._beginnings:
            queues = self._store.store.queues
            self._beginnings[peer] = Beginning.of(self.node.log, self.roster, queues).encode()
        return self._beginnings[peer][begin:end]

    # Inputs.

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.links.incoming.read_slow()
            self._records.repeat_term()
            self._write_appended()
            first = self._log.first
            if self.node.log.first < first <= self.node.commit:
                self._carry_out(self.node.trimmed(first))
                self._log.forget_terms()
            if self.node.role is Role.LEADER:
                self._note_safe()
            self._carry_out(self.node.tick())
            if self.roster.is_settled(self.node.commit):
                self._link_members()  # without those that are removed
            self._log.await_flush(self.node.awaits_flush)

    def _receive(self, peer: str, message: Framed, body: bytes) -> None:
        """Take a message of a peer.

        Raises:
            ReplicationError: The message cannot be true.
        """
        if isinstance(message, (Question, Piece)):
            self.questions.take(peer, message, body)
            return
        if self._past.is_stranger:
            return
        if self.needs_new_log and isinstance(message, Append | SnapshotOffer):
            if message.term >= self.node.term:
                self._broker.replace_log(peer)
            return
        if message.term > self.node.term:
            self._write_appended()
        self._past.note_message(peer, message)
        if self.node.role is Role.LEADER:
            self._note_safe()
        found = self.node.step(peer, message)
        if body:
            self._carry_out([with_bytes(action, message, body) for action in found])
        else:
            self._carry_out(found)
        self._log.await_flush(self.node.awaits_flush)

    def _note_history(self, peer: str, history: History, remembered: History) -> None:
        self._write_appended()  # this member may find that it has lost something, and step down
        self._past.note_history(peer, history, remembered)

    def _write_appended(self) -> None:
        """Write what the leader has appended: the node may step down next."""
        writer = self._office.writer
        if writer is not None:
            writer.commit()

    def _note_growth(self) -> None:
        """Note that the log writer has written."""
        end = self._log.end
        if end > self.node.log.end:
            self._carry_out(self.node.grew(end, self._records.take_written()))
        self._log.note_growth()

    def _note_safe(self) -> None:
        node = self.node
        safe = min(self._log.safe_position, node.log.end)
        if safe > node.log.persisted:
            self._carry_out(node.persisted(safe, node.cuts))

    def _fail(self, reason: str) -> None:
        """Take no part in decisions any more: this member cannot keep its promises."""
        if self._failure:
            return
        self._failure = reason
        logger.error("this member neither leads nor follows until a restart: reason=%s", reason)
        self._write_appended()
        self._carry_out(self.node.failed())

    # Actions.

    def _carry_out(self, found: Sequence[actions.Action | Chunk]) -> None:
        self._actions.extend(found)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._actions:
                self._act(self._actions.popleft())
        finally:
            self._is_acting = False

    def _act(self, action: actions.Action | Chunk) -> None:
        match action:
            case actions.Send(peer, message):
                self.links.send(peer, message)
            case actions.Ship():
                self._ship(action)
            case Chunk(accept, data):
                self._log.append(
                    accept.start, data, accept.spans, lambda end: self._appended(action, end)
                )
            case actions.Commit(position):
                self._commit(position)
            case actions.SaveState(number, term, vote):
                self._saver.save(number, term, vote)
            case actions.Cut(position):
                self._log.cut(position, self._note_cut)
            case actions.BecomeFollower(term, leader):
                self._follow(term, leader)
            case actions.WriteTermRecord(term):
                self._records.write_term(term)
            case actions.WriteMembers(members):
                if self._records.write_members(members):
                    self._members_changed()
            case actions.Reset():
                assert self.node.leader is not None
                self._broker.replace_log(self.node.leader)
            case actions.Cleared():
                self._later(self._past.save_repair())
            case actions.PauseWrites(to):
                self._pause_writes(f"leadership is being handed over to {to}")
            case actions.ResumeWrites():
                self._pause_writes("")
            case actions.BecomeLeader():
                pass  # it serves once its term record is committed
            case _:
                raise AssertionError(f"nothing asks for {action}")

    def _appended(self, chunk: Chunk, end: int) -> None:
        if chunk.accept.members:
            self.roster.note_bytes(chunk.data, chunk.accept.start, end)
            self._members_changed()
        self._carry_out(self.node.appended(end))

    def _note_cut(self, position: int) -> None:
        self.roster.cut(position)
        self._members_changed()
        self._carry_out(self.node.cut_done(position))

    def _members_changed(self) -> None:
        self._link_members()
        self._later(self.roster.save())

    def _link_members(self) -> None:
        self.links.set_members(self.roster.find_linked(self.node.commit))

    def _ship(self, ship: actions.Ship) -> None:
        """Send bytes of the log; if that fails, the node compares the logs again later."""
        node = self.node
        progress = node.progress.get(ship.peer)
        if progress is None or progress.ship is not ship:
            return
        end = self._log.batch_end(ship.start, ship.end)
        view = self._log.view(ship.start, end) if end > ship.start else None
        if view is None or not self.links.send(ship.peer, ship.head(end), view):
            self._carry_out(node.link_down(ship.peer))
            return
        self.scrub.note_shipped(ship.peer, ship.start, view, self._clock.now_ms)
        self._carry_out(node.shipped(ship, end))

    def _pause_writes(self, reason: str) -> None:
        writer = self._office.writer
        if writer is not None and reason:
            writer.pause(reason)
        elif writer is not None:
            writer.resume()
        if not reason:
            self._handover.note_end()

    def _commit(self, position: int) -> None:
        writer = self._office.writer
        self._log.commit(position)
        self._changes.note_news()
        if writer is None:
            self._log.show()
        else:
            writer.advance(Committed, self._log.allow_reading())
        node = self.node
        if node.role is Role.LEADER and self._office.leadership is None:
            is_own = node.log.terms.term_before(node.commit) == node.term
            if is_own and position >= node.commit:
                self._lead(node.term)

    def _lead(self, term: int) -> None:
        logger.info("leads the group: group=%s term=%s", self._config.group, term)
        self._broker.on_leader(self.node.node)
        self._office.lead(
            Leadership(
                term,
                committed=lambda: self._log.committed,
                note_growth=self._note_growth,
                source=self,
            )
        )

    def _follow(self, term: int, leader: str | None) -> None:
        reason = f"{leader or 'another member'} leads the group from term {term} on"
        if leader is None:
            reason = f"this broker does not lead its group in term {term}"
        self._office.follow(reason)
        self._log.await_flush(True)
        self.links.drop_log_bytes()
        self._handover.note_end()
        self._changes.note_news()
        if leader is not None:
            logger.info("follows: leader=%s term=%s", leader, term)
        self._broker.on_leader(leader)

    def _later(self, work: Awaitable[None]) -> None:
        """Run work that saves something, in the background.

        If it fails, this member takes no part until a restart.
        """

        async def finish() -> None:
            try:
                await work
            except StoreError as error:
                self._fail(str(error))

        task = self._loop.create_task(finish(), name="save of the group")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
