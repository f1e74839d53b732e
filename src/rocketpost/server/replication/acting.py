"""A broker's place in a group whose smallest slave acts for a lost master.

Before the broker registers, it prepares (``acting_preparation``). Then it asks a name server every
``syncBrokerMemberGroupPeriod`` for the members of its group, and tells all name servers every
``brokerHeartbeatInterval`` that it is alive. Name servers may tell it sooner that another member
has the smallest id (NOTIFY_MIN_BROKER_ID_CHANGE).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.namesrv import NotifyMinBrokerIdChange
from rocketpost.errors import RocketpostError
from rocketpost.replication.acting import Act, Duties, Duty, GoOnline, Look, PreOnline, StandBack
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.replication.acting_members import MemberSource
from rocketpost.server.replication.acting_preparation import Preparation
from rocketpost.server.routes.access import UPDATE, of_cluster
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)


def _ignore(_: object) -> None:
    """Ignore what happens in the group."""


class GroupFeature(Feature):
    """Keeps a broker's place in its group. Owned by the loop.

    Args:
        context: The state of the broker.
        broker_id: Its id; 0 is the master.
        members: Knows the members of the group.
        preparation: Performs the steps before it goes online.
        register: Registers with the name servers.
        on_duty: Called when a slave acts, stands back, or has a master to follow.
        on_alive: Called with the number of members that are alive, when it changes.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        broker_id: int,
        members: MemberSource,
        preparation: Preparation,
        register: Callable[[], Awaitable[None]],
        on_duty: Callable[[Duty], None] = _ignore,
        on_alive: Callable[[int], None] = _ignore,
    ) -> None:
        config, identity = context.broker_config, context.identity
        self._poll_seconds = config.member_poll_ms / 1000
        self._heartbeat_seconds = config.broker_heartbeat_ms / 1000
        self._prepares = config.total_replicas > 1 and not config.skip_pre_online
        self._name = identity.name
        self._register = register
        self._on_duty = on_duty
        self._on_alive = on_alive
        self._told_alive = 0
        self._preparation = preparation
        self._pre_online = PreOnline(broker_id=broker_id)
        self._duties = Duties(broker_id=broker_id, address=identity.address)
        self._members = members
        self._failure = ""
        self._is_online = False
        self._is_ending = False

    @property
    def is_acting(self) -> bool:
        """Whether this broker acts for the master."""
        return self._duties.is_acting

    @property
    def has_master(self) -> bool:
        """Whether the group has a master, as far as name servers know."""
        return self._duties.min_id == 0

    @property
    def alive(self) -> int:
        """Number of members that are alive, this one included."""
        return self._duties.alive

    @property
    def others(self) -> Sequence[str]:
        """The addresses of the other members that are alive."""
        return self._duties.others

    async def begin(self) -> None:
        """Register now, unless the broker has to prepare first: then it registers later."""
        if not self._prepares:
            await self._go_online()

    def end(self) -> None:
        """Do not register or change duties any more: the term ends."""
        self._is_ending = True

    def routes(self) -> Sequence[Route]:
        """Return the route of notices of the smallest id."""
        return [
            plain(
                RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
                NotifyMinBrokerIdChange,
                of_cluster(UPDATE),
                self._take_notice,
            )
        ]

    async def run(self) -> None:
        """Prepare and register, then follow the group until cancelled."""
        try:
            if self._prepares:
                await self._prepare()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="members")
                group.create_task(self._beat(), name="heartbeats")
        finally:
            await self._preparation.close()
            await self._members.close()

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Ask these name servers from now on."""
        self._members.use(addresses)

    def runtime_values(self) -> dict[str, str]:
        """Return the broker's place in its group."""
        return {
            "actingMaster": str(self.is_acting).lower(),
            "aliveReplicas": str(self.alive),
            "minBrokerId": str(self._duties.min_id),
            "preOnline": self._text_of_preparation(),
        }

    # Before it is online.

    async def _prepare(self) -> None:
        machine = self._pre_online
        while not isinstance(step := machine.step, GoOnline):
            try:
                if isinstance(step, Look):
                    await asyncio.sleep(step.pause_ms / 1000)
                    machine.take_members(await self._members.fetch())
                else:
                    await self._preparation.perform(step, machine.member)
                    machine.succeed()
            except RocketpostError as error:
                self._note_failure(f"{type(step).__name__}: {error}")
                machine.fail(str(error))
        for member, reason in machine.problems.items():
            logger.warning("goes online without a member: id=%s reason=%s", member, reason)
        await self._go_online()

    async def _go_online(self) -> None:
        if self._is_ending:
            return
        self._is_online = True
        await self._register()

    def _note_failure(self, reason: str) -> None:
        if reason != self._failure:  # logged once, not every second
            logger.warning("not online yet: name=%s reason=%s", self._name, reason)
        self._failure = reason

    def _text_of_preparation(self) -> str:
        if self._is_online:
            problems = self._pre_online.problems.items()
            return "; ".join([f"{key}: {reason}" for key, reason in problems]) or "done"
        return self._failure or "preparing"

    # While it is online.

    async def _follow(self) -> None:
        while True:
            try:
                self._apply(self._duties.take_members(await self._members.fetch()))
                if self.alive != self._told_alive:
                    self._told_alive = self.alive
                    self._on_alive(self.alive)
            except RocketpostError as error:  # the registration reports it
                logger.debug("members not known: reason=%s", error)
            await asyncio.sleep(self._poll_seconds)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await self._members.send_heartbeats()

    def _take_notice(
        self, connection: Connection, command: Command, header: NotifyMinBrokerIdChange
    ) -> Reply:
        is_ours = header.broker_name in (None, "", self._name)
        if is_ours and header.min_broker_addr and self._is_online:
            self._apply(
                self._duties.take_notice(
                    header.min_broker_id, header.min_broker_addr, header.ha_broker_addr or ""
                )
            )
        return Reply()

    def _apply(self, duties: list[Duty]) -> None:
        if self._is_ending:
            return
        for duty in duties:
            if isinstance(duty, Act | StandBack):
                logger.warning(
                    "%s: name=%s smallest=%s alive=%s",
                    "acts for its master" if self.is_acting else "acts no longer",
                    self._name, self._duties.min_id, self.alive,
                )  # fmt: skip
            self._on_duty(duty)
