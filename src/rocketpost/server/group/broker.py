"""A broker in a group: it opens and closes its terms of office as the group decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Self

from rocketpost.codec.group.frames import RaftDecoder, RaftEncoder
from rocketpost.codec.group.questions import Subject
from rocketpost.errors import ReplicationError, RocketpostError
from rocketpost.server.context import BrokerContext
from rocketpost.server.group.broker_side import BrokerSide, MemberSettings
from rocketpost.server.group.life.beginning import Beginning
from rocketpost.server.group.life.new_log import begin_log_blocking
from rocketpost.server.group.link_values import Framing, Protection
from rocketpost.server.group.member import GroupMember
from rocketpost.server.group.office import Leadership
from rocketpost.server.group.serving.follower_term import GroupFollowerTerm
from rocketpost.server.group.serving.forwarding import Forwarding
from rocketpost.server.group.serving.preference import prefer
from rocketpost.server.group.serving.waiting_pulls import WaitingPulls
from rocketpost.server.group.tables.reader import TableReader
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.group import GroupConfig
from rocketpost.server.term import LeaderTerm, Term
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
"""Pause between two questions to a leader."""

BeginAgain = Callable[[Callable[[], None]], Awaitable[None]]
"""Closes the store, runs its argument in a thread to change files, and opens the store again."""
ChangeTerm = Callable[[Callable[[], Awaitable[Term]]], Awaitable[None]]
"""Ends the broker's term of office, and begins the one that its argument opens."""


class GroupBroker:
    """Opens the terms of office of a group's member. Owned by the loop.

    Args:
        config: The group, and this member's place in it.
        context: The state of the broker.
        change_term: Ends the current term of office and begins another.
        begin_again: Closes the store, has its files changed, and opens it again.
        dispatcher: Serves the requests of clients.
    """

    member: GroupMember
    """This broker's part in the group."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        context: BrokerContext,
        change_term: ChangeTerm,
        begin_again: BeginAgain,
        dispatcher: Dispatcher,
    ) -> None:
        self._config = config
        self._context = context
        self._change_term = change_term
        self._begin_again = begin_again
        self._joining: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._tables: TableReader
        self._leader: str | None = None
        self._is_serving = False
        self._dispatcher = dispatcher
        self._led: LeaderTerm | None = None
        self.forwarding = Forwarding(
            self._leader_address, term=lambda: self.member.node.term, peers=context.peers
        )
        """Passes requests on to the leader."""
        dispatcher.fence = self.forwarding.check_term
        self._pulls = WaitingPulls()

    @classmethod
    async def open(
        cls,
        config: GroupConfig,
        store: MemberStore,
        *,
        context: BrokerContext,
        change_term: ChangeTerm,
        begin_again: BeginAgain,
        dispatcher: Dispatcher,
    ) -> Self:
        """Listen for the other members; nothing is decided before :meth:`start`.

        Raises:
            ConfigError: The address of this member cannot be bound.
        """
        if store.is_new:
            await asyncio.to_thread(store.doubt_blocking)  # until its group proves to be new
        broker = cls(
            config,
            context=context,
            change_term=change_term,
            begin_again=begin_again,
            dispatcher=dispatcher,
        )
        settings = context.store_config
        broker.member = GroupMember(
            config,
            store=store,
            settings=MemberSettings(
                flush_mode=settings.flush_mode,
                host=context.store_host,
                address=context.identity.address,
                equal={
                    "mappedFileSizeCommitLog": str(settings.segment_bytes),
                    "flushDiskType": settings.flush_mode.name,
                    "messageDelayLevel": settings.delay_levels,
                    "brokerName": context.identity.name,
                    "brokerClusterName": context.identity.cluster,
                },
                store=lambda: context.store_config,
                protection=Protection.of_group(
                    config.group, context.peers.log_ports, context.access.audit
                ),
            ),
            clock=context.clock,
            framing=Framing(RaftEncoder(config.group).encode, lambda: RaftDecoder(config.group)),
            broker=BrokerSide(
                lead=broker._lead,
                follow=broker._follow,
                on_leader=broker._note_leader,
                replace_log=broker._replace_log,
            ),
        )
        await broker.member.bind()
        return broker

    def start(self) -> asyncio.Task[None]:
        """Take part in the group; the task ends early only if something fails."""
        self._work = asyncio.create_task(self._run(), name="group")
        return self._work

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.member.run(), name="member")
            if self._config.preferred:
                tasks.create_task(prefer(self._config.preferred, self.member), name="preference")

    async def hand_over(self) -> None:
        """Let another member lead, if this one does and another one is ready."""
        if self._work is None or self._work.done() or not self.member.is_leading:
            return
        try:
            await self.member.hand_over()
        except ReplicationError as error:
            logger.warning("leadership is not handed over: reason=%s", error)

    async def stop(self) -> None:
        """Stop taking part; the caller has closed the term of office before."""
        joining = self._joining
        if joining is not None and joining is not asyncio.current_task():
            joining.cancel()
            await asyncio.wait((joining,))
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))
        await self.member.close()
        await self.forwarding.stop()

    async def open_follower(self) -> Term:
        """Open a term of office as follower.

        Raises:
            StoreError: The files of a feature cannot be read.
        """
        self._tables = TableReader(self._context, is_readable=not self.member.needs_new_log)
        term = await GroupFollowerTerm.open(
            self._context,
            broker_id=self._config.follower_id,
            election=self.member.node.term,
            source=self.member,
            tables=self._tables,
            forwarding=self.forwarding,
        )
        self._is_serving, self._led = False, None
        self.member.set_listeners(term.features.arrival_listeners())
        return term

    async def _lead(self, leadership: Leadership) -> None:
        async def open_leader() -> Term:
            self.member.set_listeners(())
            await self._tables.catch_up()
            term = self._led = await LeaderTerm.open(
                self._context, number=leadership.term, seat=leadership
            )
            self.member.set_listeners(term.features.arrival_listeners())
            self._is_serving = leadership.is_valid
            self.forwarding.note_leader()
            return term

        leadership.hold = self._hold
        await self._change_term(open_leader)
        self._serve_waiting()  # in the loop iteration in which its routes are used
        self._pulls.serve(self._dispatcher.handle)

    async def _follow(self) -> None:
        await self._change_term(self.open_follower)
        self._pulls.serve(self._dispatcher.handle)

    def replace_between_terms(self, routes: Iterable[Route]) -> list[Route]:
        """Return the routes between two terms: requests wait or are passed on, so none fails."""
        return self._pulls.replace(self.forwarding.replace(routes))

    def _replace_log(self, leader: str) -> None:
        """Begin to replace the log by the leader's, unless that is under way."""
        if self._joining is None:
            self._joining = asyncio.create_task(self._join(leader), name="new log")
            self._joining.add_done_callback(_note_joined)

    async def _join(self, leader: str) -> None:
        """Find out where the leader's log begins, and begin again there.

        Raises:
            StoreError: The files cannot be changed; the broker has stopped.
        """
        while True:
            try:
                text = await self.member.questions.fetch(leader, Subject.BEGINNING)
                beginning = Beginning.decode(text)
                break
            except RocketpostError as error:
                logger.warning("no beginning of a log yet: leader=%s reason=%s", leader, error)
                await asyncio.sleep(RETRY_SECONDS)
                leader = self._leader or leader
        log, config = self.member.node.log, self._context.store_config
        if not self.member.needs_new_log and not beginning.is_needed_by(log):
            logger.info("the log is not replaced: leader=%s begins=%s", leader, beginning.first)
            await self._begin_again(_change_nothing)
            return
        logger.warning(
            "this member gets a new log from its leader: leader=%s begins=%s own=%s-%s",
            leader, beginning.first, log.first, log.end,
        )  # fmt: skip
        await self._begin_again(
            partial(begin_log_blocking, config, beginning, self._context.store.files)
        )

    def _note_leader(self, leader: str | None) -> None:
        self._leader = leader
        if self._is_serving and leader != self._config.node:
            self._hold(True)  # until the term of office is closed
        self.forwarding.note_leader()

    def _hold(self, is_held: bool) -> None:
        """Make requests for the leader wait until there is another one, or serve them again."""
        self._is_serving = not is_held
        term = self._led
        if term is not None and is_held:
            self._dispatcher.use(self.forwarding.replace(term.routes()))
        elif term is not None:
            self._dispatcher.use(term.routes(), term.lanes)
            self._serve_waiting()
        self.forwarding.note_leader()

    def _serve_waiting(self) -> None:
        """Serve the sends that wait for a leader, if this broker leads; its routes are in use."""
        if self._is_serving:
            self.forwarding.serve_here(self._dispatcher.handle)

    def _leader_address(self) -> str | None:
        """Return the address of the leader for clients; None if there is none that serves."""
        if self._leader is None or (self._leader == self._config.node and not self._is_serving):
            return None
        return self.member.links.client_addresses.get(self._leader)


def _change_nothing() -> None:
    """Leave the files as they are: a new start of the member is enough."""


def _note_joined(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("no new log: reason=%s", error)
