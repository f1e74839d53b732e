"""Requests of clients whose queues are assigned by brokers, and requests about request modes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rocketpost.broker.group.assignment import AssignmentService
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.codec.bodies.assignment import Assignments, decode_query, decode_request_mode
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.routes.access import LIST, of_every_group, of_every_topic
from rocketpost.server.routes.body_access import ASSIGNMENT, REQUEST_MODE
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)


class Routes(Protocol):
    """Source of the queues of topics on all brokers."""

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return the readable queues of a topic; None if no server knows it."""
        ...


class AssignmentHandlers:
    """Serves assignments and request modes. Owned by the loop.

    Args:
        save: Returns once the modes are on disk; no change is acknowledged before.
    """

    def __init__(
        self,
        *,
        service: AssignmentService,
        modes: RequestModes,
        routes: Routes,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._service = service
        self._modes = modes
        self._routes = routes
        self._save = save

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.QUERY_ASSIGNMENT, NO_HEADER, ASSIGNMENT, self.assign, PoolKind.ROUTES
            ),
            waiting(RequestCode.SET_MESSAGE_REQUEST_MODE, NO_HEADER, REQUEST_MODE, self.set_mode),
            plain(
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
                NO_HEADER,
                of_every_topic(LIST) + of_every_group(LIST),
                self.modes,
            ),
        ]

    async def assign(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the queues of the client."""
        asked = read_body(command, decode_query)
        try:
            queues = await self._routes.queues(asked.topic)
        except RocketpostError as error:
            # The client keeps its queues, which is most often right.
            logger.warning("no assignment: topic=%s reason=%s", asked.topic, error)
            queues = None
        return json_reply(
            Assignments(message_queue_assignments=self._service.assign(asked, queues))
        )

    async def set_mode(self, connection: Connection, command: Command, header: None) -> Reply:
        """Set the request mode of a group for a topic: pull or pop."""
        self._modes.set(read_body(command, decode_request_mode))
        await self._save()
        return Reply()

    def modes(self, connection: Connection, command: Command, header: None) -> Reply:
        """List the modes that are set, in the form that a slave reads."""
        return json_reply(self._modes.body())
