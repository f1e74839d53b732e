"""The registration with name servers, in the role of the current term."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from rocketpost.model.route import MASTER_ID
from rocketpost.model.topic import DataVersion
from rocketpost.namesrv.claims import STATE_VERSION_MAX
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.name_servers.registration import Announcement, Registration


class RegistrationFeature(Feature):
    """Keeps the broker known to its name servers. Owned by the loop.

    Args:
        context: The state of the broker.
        broker_id: The id to register with: 0 for a leader, more for a follower.
        ha_address: Returns the address for slaves; empty if there is none.
        on_master: Called with a master's addresses for requests and for its log, when a name
            server tells them.
        state_version: Number of the election that gave the broker its role; 0 if there was none.
            Name servers give id 0 to the broker with the higher one.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        broker_id: int,
        ha_address: Callable[[], str],
        on_master: Callable[[str, str], None] | None = None,
        state_version: int = 0,
    ) -> None:
        self._context = context
        self._state_version = min(state_version, STATE_VERSION_MAX)
        self._broker_id = broker_id
        self._ha_address = ha_address
        self._ordered: dict[str, frozenset[str]] = {}
        config = context.broker_config
        self._registration = Registration(
            name_servers=context.name_servers(),
            announce=self._announcement,
            period_ms=config.register_period_ms,
            timeout_ms=config.register_timeout_ms,
            on_order_topics=self._take_ordered_topics,
            on_master=on_master,
            peers=context.peers,
        )

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that know the broker."""
        return self._registration.registered

    async def begin(self) -> None:
        """Register; return when every name server was tried once, or after some seconds."""
        await self._registration.start()

    async def end(self) -> None:
        """Unregister from every name server."""
        await self._registration.stop()

    async def pause(self) -> None:
        """Stop registering, but stay known: the next term registers in another role."""
        await self._registration.pause()

    async def forget(self) -> None:
        """Close the connections that :meth:`pause` has left."""
        await self._registration.close()

    def note_change(self) -> None:
        """Register again soon, as topics changed."""
        self._registration.note_change()

    async def wait_registered(self) -> None:
        """Return once the name servers that can be reached know the last change."""
        await self._registration.wait_registered()

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Register with these name servers from now on."""
        for gone in self._ordered.keys() - set(addresses):
            del self._ordered[gone]
        await self._registration.use(addresses)

    def runtime_values(self) -> dict[str, str]:
        """Return the name servers that know the broker, and the problems of the others."""
        problems = [f"{where}: {why}" for where, why in self._registration.problems.items()]
        return {
            "nameServersRegistered": ";".join(sorted(self._registration.registered)),
            "nameServerProblems": "; ".join(problems),
        }

    def _take_ordered_topics(self, address: str, table: Mapping[str, str]) -> None:
        if self._broker_id != MASTER_ID:
            return  # a slave follows its master's table
        # Name servers may differ after a missed change: a topic is ordered if any of them says so.
        self._ordered[address] = frozenset(table)
        self._context.tables.topics.mark_ordered(frozenset().union(*self._ordered.values()))

    def _announcement(self) -> Announcement:
        identity, topics = self._context.identity, self._context.tables.topics
        config = self._context.broker_config
        return Announcement(
            cluster=identity.cluster,
            name=identity.name,
            broker_id=self._broker_id,
            address=identity.address,
            ha_address=self._ha_address(),
            data_version=self._version(),
            topics=topics.configs,
            permission=config.permission,
            slaves_act=config.acting_master,
            # Without heartbeats every second, the name server's own limit is right.
            inactive_ms=config.broker_inactive_ms if config.acting_master else None,
        )

    def _version(self) -> DataVersion:
        version = self._context.tables.topics.version
        return replace(version, state_version=self._state_version)
