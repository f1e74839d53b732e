"""Requests of consumers that send messages back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rocketpost.broker.group.retry import RetryService
from rocketpost.broker.stats import BrokerStats
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.properties import decode_properties
from rocketpost.model.properties import RETRY_TOPIC
from rocketpost.server.features.delay_delivery import Put
from rocketpost.server.routes.access import SUB, of_group, of_message
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.transport.connection import Connection


class RetryHandlers:
    """Serves send-backs.

    Args:
        put: Stores messages as safely as this broker alone can.
        wait_for_slaves: Waits until enough slaves have what is stored.
        broker_writable: Returns whether the broker's permission has the write bit.
        stats: Counts the messages that are sent back.
    """

    def __init__(
        self,
        *,
        service: RetryService,
        put: Put,
        wait_for_slaves: Callable[[], Awaitable[None]],
        broker_writable: Callable[[], bool],
        stats: BrokerStats,
    ) -> None:
        self._service = service
        self._put = put
        self._wait_for_slaves = wait_for_slaves
        self._broker_writable = broker_writable
        self._stats = stats

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                SendBackHeader,
                of_group(SUB) + of_message(SUB, field="offset"),
                self.send_back,
                PoolKind.MESSAGES,
            ),
        ]

    async def send_back(
        self, connection: Connection, command: Command, header: SendBackHeader
    ) -> Reply:
        """Store a message again, for later or as a dead letter; answer once it is stored.

        The consumer moves its offset past the original when it gets the answer, so the copy must
        not be lost with this broker: the answer waits for slaves as that of a send does.
        """
        draft = self._service.draft(
            header,
            client_version=command.version,
            broker_writable=self._broker_writable(),
            by=f"{connection.peer_text} cause=send-back",
        )
        if draft is not None:
            await self._put([draft])
            topic = decode_properties(draft.properties)[RETRY_TOPIC]
            self._stats.count_send_back(topic, header.group)
            await self._wait_for_slaves()
        return Reply()
