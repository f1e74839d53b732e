"""Broker-side assignment of queues: its requests, and the routes that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rocketpost.broker.group.assignment import AssignmentService
from rocketpost.broker.group.request_modes import ModeRules
from rocketpost.model.route import MessageQueue
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.assignment import AssignmentHandlers
from rocketpost.server.name_servers.route_view import RouteView
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.tables.persistence import Owner
from rocketpost.store.config import StoreConfig


class AssignmentFeature(Feature):
    """Serves assignments. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        tables = context.tables
        self._topics = tables.topics
        self._broker_name = context.identity.name
        self._modes = tables.modes
        self._persistence = context.persistence
        self._service = AssignmentService(members=context.membership, modes=tables.modes)
        self._routes = RouteView(
            name_servers=context.name_servers(), own_queues=self._own_queues, peers=context.peers
        )
        self._handlers = AssignmentHandlers(
            service=self._service,
            modes=tables.modes,
            routes=self._routes,
            save=partial(context.persistence.save, Owner.REQUEST_MODES),
        )

    async def open(self) -> None:
        """Save the modes whenever they change."""
        self._modes.on_change = partial(self._persistence.note_change, owner=Owner.REQUEST_MODES)

    def routes(self) -> Sequence[Route]:
        """Return the routes of assignments and request modes."""
        return self._handlers.routes()

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Ask these name servers from now on."""
        self._routes.use(addresses)

    async def run(self) -> None:
        """Keep routes fresh."""
        await self._routes.run()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the default mode, and how routes are polled."""
        self._modes.rules = ModeRules(broker.default_request_mode.name, broker.default_pop_share)
        self._service.shares_out = broker.server_load_balancer
        self._routes.poll_seconds = broker.load_balance_poll_ms / 1000

    async def save(self) -> None:
        """Close the connections to the name servers."""
        await self._routes.close()

    def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.find(topic)
        if config is None:
            return None
        count = config.read_queue_nums if config.readable else 0
        return [MessageQueue(self._broker_name, queue_id, topic) for queue_id in range(count)]
