"""The proxy as a whole: puts the methods together, opens the port, runs the background work."""

from __future__ import annotations

import asyncio
import contextlib

from rocketpost.proxy.ack_batches import AckBatches
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.broker_requests import BrokerRequests
from rocketpost.proxy.clients import ClientTable, GrpcClient
from rocketpost.proxy.gathering import Gathering
from rocketpost.proxy.methods import MethodTable
from rocketpost.proxy.port.credentials import CredentialSource
from rocketpost.proxy.port.server import GrpcServer
from rocketpost.proxy.renewal import Renewals
from rocketpost.proxy.rights import Guard
from rocketpost.proxy.services import offsets, receiving
from rocketpost.proxy.services.offsets import OffsetMethods
from rocketpost.proxy.services.receipts import ReceiptMethods
from rocketpost.proxy.services.receiving import ReceiveMethods
from rocketpost.proxy.services.routes import EndpointsOf, RouteMethods
from rocketpost.proxy.services.sending import SendMethods
from rocketpost.proxy.services.telemetry import TelemetryMethods
from rocketpost.proxy.services.transactions import end_transaction
from rocketpost.proxy.settings import ProxyConfig


class GrpcProxy:
    """Serves clients of the 5.x protocol. Belongs to the event loop.

    Args:
        backend: The brokers.
        config: The settings.
        guard: Access control.
        endpoints_of: Returns where clients find the queues of a broker.
        keys: The certificate of the port; without one it is plain.
        gathering: Has acknowledgements wait for each other; None to send each alone.
    """

    def __init__(
        self,
        backend: Backend,
        config: ProxyConfig,
        *,
        guard: Guard,
        endpoints_of: EndpointsOf,
        keys: CredentialSource | None = None,
        gathering: Gathering | None = None,
    ) -> None:
        self.clients = ClientTable(backend, config)
        self.broker_requests = BrokerRequests(self.clients, guard, config)
        self.clients.on_request = self.broker_requests.serve_for
        self.clients.on_leave = self._note_leave
        self._renewals = Renewals(backend, config)
        routes = RouteMethods(backend, endpoints_of)
        sends = SendMethods(backend, self.clients, config)
        receives = ReceiveMethods(backend, self._renewals, config)
        pulls = OffsetMethods(backend, config)
        receipts = ReceiptMethods(self._renewals, AckBatches(gathering), config)
        telemetry = TelemetryMethods(backend, self.clients, config, self.broker_requests)
        self._methods = MethodTable(
            clients=self.clients,
            guard=guard,
            unary={
                "QueryRoute": routes.query_route,
                "QueryAssignment": routes.query_assignment,
                "Heartbeat": telemetry.heartbeat,
                "NotifyClientTermination": telemetry.terminate,
                "SendMessage": sends.send,
                "RecallMessage": sends.recall,
                "EndTransaction": end_transaction,
                "AckMessage": receipts.acknowledge,
                "ChangeInvisibleDuration": receipts.change_invisible,
                "ForwardMessageToDeadLetterQueue": receipts.forward,
                "UpdateOffset": pulls.update,
                "GetOffset": pulls.get,
                "QueryOffset": pulls.query,
            },
            streaming={
                "ReceiveMessage": (receives.receive, receiving.failed_answers),
                "PullMessage": (pulls.pull, offsets.failed_answers),
            },
            telemetry=telemetry,
        )
        self._server = GrpcServer(self._methods, config, keys)
        self._work: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port."""
        return self._server.port

    async def start(self) -> None:
        """Return when calls are served.

        Raises:
            ConfigError: The port cannot be bound.
        """
        await self._server.start()
        self._work = asyncio.create_task(self._run(), name="proxy")

    async def stop(self) -> None:
        """Return when no call is served any more."""
        await self._server.stop()
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        await self.broker_requests.close()
        self._renewals.close()
        self.clients.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clients.run(), name="expiry of clients")
            group.create_task(self._renewals.run(), name="renewal of received messages")

    async def _note_leave(self, client: GrpcClient) -> None:
        await self._renewals.return_all(client)
