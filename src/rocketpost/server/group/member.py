"""A member of a group at work: its state machine, its log, its links, and its office.

``raft.node`` decides. This module carries out its actions in their order, and tells it what
happened. Inputs that arrive while actions are carried out are taken, and their actions follow.

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
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from rocketpost.errors import StoreError
from rocketpost.model.clock import Clock
from rocketpost.raft import actions
from rocketpost.raft.config import TICK_MS, RaftConfig
from rocketpost.raft.election import Role
from rocketpost.raft.messages import Append, Message
from rocketpost.server.group.incoming import IncomingLinks
from rocketpost.server.group.link_values import Framing, Seat
from rocketpost.server.group.member_log import MemberLog
from rocketpost.server.group.node_opening import open_node
from rocketpost.server.group.office import Leadership, Office
from rocketpost.server.group.outgoing import OutgoingLink
from rocketpost.server.group.state_saver import StateSaver
from rocketpost.server.group.status import MemberStatus
from rocketpost.server.replication.status import (
    MasterStatus,
    ReplicaStatus,
    ReplicationStatus,
    SlaveStatus,
)
from rocketpost.server.settings.group import GroupConfig
from rocketpost.server.writer.acknowledgement_rules import Committed
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Appended
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)

HAND_OVER_SECONDS: Final = 1.0
"""Time that a leader which stops gives another member to take over."""
_IN_SYNC_BYTES: Final = 256 * 1024 * 1024


class _Chunk(NamedTuple):
    """Bytes of a leader's log that are to be appended."""

    accept: actions.Accept
    data: bytes


class GroupMember:
    """One broker's part in its group. Owned by the loop.

    Args:
        config: The group, and this member's place in it.
        store: This member's store.
        flush_mode: Whether bytes must be flushed before they count.
        clock: The clock.
        host: Packed address of this broker.
        address: Address at which clients reach this broker.
        settings: Settings that must be equal on all members.
        framing: Encodes and decodes messages.
        lead: Opens a term of office as leader.
        follow: Opens one as follower.
        on_leader: Called with the id of the leader, or None if there is none.
        raft: Times and sizes of the state machine.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        store: MemberStore,
        flush_mode: FlushMode,
        clock: Clock,
        host: bytes,
        address: str,
        settings: dict[str, str],
        framing: Framing,
        lead: Callable[[Leadership], Awaitable[None]],
        follow: Callable[[], Awaitable[None]],
        on_leader: Callable[[str | None], None],
        raft: RaftConfig | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._store = store
        self._on_leader = on_leader
        self._addresses = {config.node: address}
        self._failure = ""
        self._log = MemberLog(
            store,
            node=config.node,
            host=host,
            clock=clock,
            flush_mode=flush_mode,
            on_safe=self._note_safe,
            on_failed=self._fail,
        )
        self.node = open_node(config, store, raft or RaftConfig())
        """The state machine; not to be changed by others."""
        self._office = Office(lead=lead, follow=follow, allow_changes=self._log.allow_changes)
        self._saver = StateSaver(
            store,
            progress=lambda: (self.node.commit, self.node.log.persisted),
            on_saved=lambda number: self._carry_out(self.node.state_saved(number)),
            on_failed=self._fail,
        )
        seat = Seat(config.group, config.node, settings, address)
        self._incoming = IncomingLinks(
            seat=seat,
            peers=config.others,
            framing=framing,
            on_message=self._receive,
            on_hello=self._note_address,
        )
        self._links = {
            node: OutgoingLink(
                node,
                peer.address,
                seat=seat,
                framing=framing,
                on_up=self._note_up,
                on_down=self._note_down,
            )
            for node, peer in config.others.items()
        }
        self._actions: deque[actions.Action | _Chunk] = deque()
        self._is_acting = False
        self._owes_record = False
        self._given_up: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # Life.

    async def bind(self) -> None:
        """Listen for the other members.

        Raises:
            ConfigError: The address cannot be bound.
        """
        own = self._config.own
        await self._incoming.start(own.host, own.port)
        self._log.begin()

    async def run(self) -> None:
        """Take part in the group until cancelled.

        Raises:
            StoreError: A term of office cannot be opened.
        """
        async with asyncio.TaskGroup() as group:
            for link in self._links.values():
                group.create_task(link.run(), name=f"link to {link.peer}")
            group.create_task(self._saver.run(), name="hard state")
            group.create_task(self._office.run(), name="office")
            group.create_task(self._keep_time(), name="ticks")

    async def hand_over(self) -> None:
        """Let the member with most of the log lead, if this one does; wait for that, not for long.

        The term of office is closed before, so the log does not grow.
        """
        node = self.node
        peers = [
            (progress.match, peer)
            for peer, progress in node.progress.items()
            if peer in node.members.voters and self._links[peer].is_up and not progress.suspect
        ]
        if not peers:
            return
        self._given_up = asyncio.Event()
        self._carry_out(node.transfer(max(peers)[1]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._given_up.wait()

    async def close(self) -> None:
        """Stop taking part; the term of office is closed by its owner."""
        self._incoming.close()
        self._office.follow("the broker is shutting down")
        await self._log.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._saver.close()

    def set_listeners(self, listeners: Sequence[ArrivalListener]) -> None:
        """Tell these of messages that become visible while this broker does not lead."""
        self._log.arrival_listeners = listeners

    # State.

    @property
    def is_leading(self) -> bool:
        """Whether this member leads and serves clients, or is about to."""
        return self._office.leadership is not None

    @property
    def port(self) -> int:
        """The bound port."""
        return self._incoming.port

    def member_status(self) -> MemberStatus:
        """Return this member's view of its group."""
        node = self.node
        role = node.role if node.role in (Role.LEADER, Role.FOLLOWER) else Role.CANDIDATE
        return MemberStatus(
            group=self._config.group,
            node=node.node,
            role=role.name,
            term=node.term,
            leader=node.leader or "",
            end=node.log.end,
            committed=node.commit,
            voters=tuple(sorted(node.members.voters)),
            problems={link.peer: link.problem for link in self._links.values() if link.problem},
            is_suspect=node.is_suspect,
            failure=self._failure,
        )

    def status(self) -> ReplicationStatus:
        """Return the state of replication, as ``haStatus`` shows it."""
        node = self.node
        if node.role is Role.LEADER:
            return MasterStatus(
                [
                    ReplicaStatus(
                        address=self._links[peer].address,
                        acknowledged=progress.match,
                        next_position=progress.next,
                        is_in_sync=node.log.end - progress.match < _IN_SYNC_BYTES,
                        problem=self._links[peer].problem,
                    )
                    for peer, progress in node.progress.items()
                    if peer in self._links
                ]
            )
        link = self._links.get(node.leader or "")
        return SlaveStatus(
            master_address=link.address if link is not None else None,
            is_connected=node.leader is not None,
            problem=self._failure,
        )

    # Inputs.

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._repeat_term_record()
            self._write_appended()
            first = self._log.first
            if self.node.log.first < first <= self.node.commit:
                self._carry_out(self.node.trimmed(first))
            self._carry_out(self.node.tick())

    def _receive(self, peer: str, message: Message, body: bytes) -> None:
        """Take a message of a peer.

        Raises:
            ReplicationError: The message cannot be true.
        """
        if message.term > self.node.term:
            self._write_appended()
        found = self.node.step(peer, message)
        self._carry_out([_with_bytes(action, message, body) for action in found])

    def _write_appended(self) -> None:
        """Write what the leader has appended: the node may step down next."""
        writer = self._office.writer
        if writer is not None:
            writer.commit()

    def _note_growth(self) -> None:
        """Take over that the log writer has written."""
        end = self._log.end
        if end > self.node.log.end:
            self._carry_out(self.node.grew(end))
        self._log.note_growth()

    def _note_safe(self) -> None:
        node = self.node
        safe = min(self._log.safe_position, node.log.end)
        if safe > node.log.persisted:
            self._carry_out(node.persisted(safe, node.cuts))

    def _note_up(self, peer: str, address: str) -> None:
        self._note_address(peer, address)
        self._carry_out(self.node.link_up(peer))

    def _note_down(self, peer: str) -> None:
        self._carry_out(self.node.link_down(peer))

    def _note_address(self, peer: str, address: str) -> None:
        self._addresses[peer] = address

    def _fail(self, reason: str) -> None:
        """Take no part in decisions any more: this member cannot keep its promises."""
        if self._failure:
            return
        self._failure = reason
        logger.error("this member neither leads nor follows until a restart: reason=%s", reason)
        self._write_appended()
        self._carry_out(self.node.failed())

    # Actions.

    def _carry_out(self, found: Sequence[actions.Action | _Chunk]) -> None:
        self._actions.extend(found)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._actions:
                self._act(self._actions.popleft())
        finally:
            self._is_acting = False

    def _act(self, action: actions.Action | _Chunk) -> None:
        match action:
            case actions.Send(peer, message):
                link = self._links.get(peer)
                if link is not None:
                    link.send(message)
            case actions.Ship():
                self._ship(action)
            case _Chunk(accept, data):
                self._log.append(
                    accept.start,
                    data,
                    accept.spans,
                    lambda end: self._carry_out(self.node.appended(end)),
                )
            case actions.Commit(position):
                self._commit(position)
            case actions.SaveState(number, term, vote):
                self._saver.save(number, term, vote)
            case actions.Cut(position):
                self._log.cut(position, lambda end: self._carry_out(self.node.cut_done(end)))
            case actions.BecomeFollower(term, leader):
                self._follow(term, leader)
            case actions.WriteTermRecord(term):
                self._write_term(term)
            case actions.Reset(first):
                logger.error(
                    "this member lacks bytes that the leader has deleted: end=%s leader_first=%s; "
                    "replace its store by a copy of another member's",
                    self._log.end, first,
                )  # fmt: skip
            case actions.Cleared():
                self._clear_suspicion()
            case actions.BecomeLeader():
                pass  # it serves once its term record is committed
            case actions.PauseWrites() | actions.ResumeWrites():
                pass  # a leader hands over when its term of office is closed
            case _:
                raise AssertionError(f"nothing asks for {action}")

    def _ship(self, ship: actions.Ship) -> None:
        """Send bytes of the log; if that cannot be, the node compares logs again later."""
        node = self.node
        progress = node.progress.get(ship.peer)
        if progress is None or progress.ship is not ship:
            return
        end = self._log.batch_end(ship.start, ship.end)
        view = self._log.view(ship.start, end) if end > ship.start else None
        link = self._links.get(ship.peer)
        if view is None or link is None or not link.send(ship.head(end), view):
            self._carry_out(node.link_down(ship.peer))
            return
        self._carry_out(node.shipped(ship, end))

    def _leads(self, term: int) -> bool:
        return self.node.role is Role.LEADER and self.node.term == term

    def _write_term(self, term: int) -> None:
        """Begin a term with its record, or write another one into a term that has begun."""
        if self._log.last_term < term:
            logger.info("elected: group=%s term=%s", self._config.group, term)
            self._log.write_term(term, self._leads, self._note_term_record)
        else:
            self._owes_record = True
            self._repeat_term_record()

    def _repeat_term_record(self) -> None:
        """Write another term record, once there is a writer, by the way of all messages."""
        writer = self._office.writer
        if not self._owes_record or writer is None:
            return
        self._owes_record = False
        try:
            writer.put([self._log.draft_of_term()]).add_done_callback(_note_stored)
        except StoreError as error:
            logger.warning("no term record: reason=%s", error)

    def _note_term_record(self, end: int) -> None:
        self._carry_out(self.node.grew(end))

    def _commit(self, position: int) -> None:
        writer = self._office.writer
        self._log.commit(position)
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
        self._on_leader(self.node.node)
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
        for link in self._links.values():
            link.drop_log_bytes()
        if self._given_up is not None:
            self._given_up.set()
        if leader is not None:
            logger.info("follows: leader=%s term=%s", leader, term)
        self._on_leader(leader)

    def _clear_suspicion(self) -> None:
        async def clear() -> None:
            try:
                await asyncio.to_thread(self._store.clear_suspicion_blocking)
            except StoreError as error:
                self._fail(str(error))

        task = self._loop.create_task(clear(), name="end of suspicion")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _note_stored(done: asyncio.Future[list[Appended]]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.warning("no term record: reason=%s", error)


def _with_bytes(action: actions.Action, message: Message, body: bytes) -> actions.Action | _Chunk:
    if not isinstance(action, actions.Accept):
        return action
    assert isinstance(message, Append)
    begin, end = action.start - message.prev, action.end - message.prev
    return _Chunk(action, body if end - begin == len(body) else body[begin:end])
