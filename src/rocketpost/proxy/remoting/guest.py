"""One client of the remoting protocol behind the proxy.

It has connections of its own to brokers and name servers, so that each broker knows it as one
client, checks its signatures, and can send requests to it. Only routes are changed: they have the
proxy's address in place of those of brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from rocketpost.client.session import Session
from rocketpost.client.tls import client_context
from rocketpost.codec.bodies.route import decode_route, encode_route
from rocketpost.codec.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from rocketpost.codec.command import Command, encode_response
from rocketpost.errors import (
    ConnectionLost,
    NotConnected,
    RemoteProtocolError,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.model.route import MASTER_ID, BrokerData, TopicRoute
from rocketpost.proxy.cluster.masters import Masters
from rocketpost.proxy.remoting.targets import FOR_ALL, FOR_ANY, broker_of, topic_of
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 3.0
ASKED_MAX: Final = 1024
"""Most requests of brokers that a client has not answered."""
_UNNAMED: Final = (
    "the request does not name its broker (bname), and there are several: clients need RocketMQ 5, "
    "or connect to brokers directly"
)


class Refused(NamedTuple):
    """An answer of the proxy itself."""

    code: int
    remark: str


class Guest:
    """One client. Belongs to the event loop.

    Args:
        client: The connection of the client.
        session: The proxy's own connections; knows routes and name servers.
        masters: Finds the masters of brokers.
        address: Returns the proxy's address for clients.
    """

    def __init__(
        self,
        client: Connection,
        *,
        session: Session,
        masters: Masters,
        address: Callable[[], str],
    ) -> None:
        self._client = client
        self._session = session
        self._masters = masters
        self._address = address
        self._connector: Connector | None = None
        self._heartbeat: Command | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, command: Command) -> None:
        """Pass a request on, and its answer back."""
        try:
            broker = broker_of(command)
        except RemoteProtocolError as error:
            self._refuse(command, Refused(ResponseCode.INVALID_PARAMETER, str(error)))
            return
        connector = self._own_connector(command)
        if broker and (address := self._session.routes.peek_master(broker)):
            connection = connector.peek(address)
            if connection is not None:  # in the order of the client's requests
                self._pass(connection, command)
                return
        self._start(self._serve(connector, command, broker), command)

    def close(self) -> None:
        """Close the client's connections: it is gone."""
        for task in list(self._tasks):
            task.cancel()
        if self._connector is not None:
            for connection in list(self._connector.connections.values()):
                connection.close()

    # Requests of the client.

    async def _serve(self, connector: Connector, command: Command, broker: str) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            await self._route(connector, command)
        elif command.code in FOR_ALL:
            await self._tell_all(connector, command)
        else:
            broker = broker or await self._choose(command)
            connection = await self._masters.call(broker, partial(self._connect, connector))
            self._pass(connection, command)

    async def _choose(self, command: Command) -> str:
        """Return the broker of a request that names none.

        Raises:
            RouteNotFound: There are several.
        """
        topic = topic_of(command)
        if topic:
            brokers = (await self._masters.route(topic)).broker_datas
        else:
            brokers = await self._masters.all()
        names = sorted(each.broker_name for each in brokers if each.master)
        if not names:
            raise RouteNotFound("no broker has a master now")
        if len(names) > 1 and command.code not in FOR_ANY:
            raise RouteNotFound(_UNNAMED)
        return names[0]

    async def _connect(self, connector: Connector, address: str) -> Connection:
        """Return a connection to a broker, which knows the client before anything else."""
        connection = connector.peek(address)
        if connection is None:
            connection = await connector.connect(address)
            if (beat := self._heartbeat) is not None:
                connection.send_oneway(beat.code, fields=beat.fields, body=beat.body)
        return connection

    def _pass(self, connection: Connection, command: Command) -> None:
        code, fields, body = command.code, command.fields, command.body
        if command.is_oneway:
            connection.send_oneway(code, fields=fields, body=body)
            return
        connection.send_request(code, partial(self._answer, command), fields=fields, body=body)

    def _answer(self, command: Command, answer: Command | ConnectionLost) -> None:
        if isinstance(answer, ConnectionLost):
            text = f"the broker was lost, the request may or may not have had an effect: {answer}"
            self._refuse(command, Refused(ResponseCode.SYSTEM_ERROR, text))
        else:
            answer_as(self._client, command, answer)

    async def _route(self, connector: Connector, command: Command) -> None:
        """Ask a name server as the client, and answer with the proxy in place of brokers."""
        failure: RocketpostError = NotConnected("no name server is known")
        for address in self._session.name_servers.addresses:
            try:
                connection = await connector.connect(address)
                answer = await connection.request(
                    command.code, fields=command.fields, timeout=CALL_SECONDS
                )
            except RocketpostError as error:
                failure = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                standard = command.version >= VERSION_STANDARD_JSON or (
                    command.fields.get("acceptStandardJsonOnly", "").lower() == "true"
                )
                route = at_proxy(decode_route(answer.body), self._address())
                answer.body = encode_route(route, standard=standard)
            answer_as(self._client, command, answer)
            return
        raise failure

    async def _tell_all(self, connector: Connector, command: Command) -> None:
        """Send a heartbeat, or a farewell, to all brokers; return the first good answer."""
        if command.code == RequestCode.HEART_BEAT:
            self._heartbeat = command
        addresses = [each.master for each in await self._masters.all() if each.master]
        answers = await asyncio.gather(
            *(self._tell(connector, address, command) for address in addresses)
        )
        found = [answer for answer in answers if answer is not None]
        if not found:
            raise NotConnected("no broker answers")
        best = min(found, key=lambda answer: answer.code != ResponseCode.SUCCESS)
        answer_as(self._client, command, best)

    async def _tell(self, connector: Connector, address: str, command: Command) -> Command | None:
        try:
            connection = await connector.connect(address)
            return await connection.request(
                command.code, fields=command.fields, body=command.body, timeout=CALL_SECONDS
            )
        except RocketpostError as error:
            logger.info("heartbeat not passed on: broker=%s reason=%s", address, error)
            return None

    # Requests of brokers.

    def _ask_client(self, connection: Connection, command: Command) -> None:
        client, fields = self._client, command.fields
        try:
            if command.is_oneway:
                client.send_oneway(command.code, fields=fields, body=command.body)
                return
            if client.unanswered_count >= ASKED_MAX:
                raise NotConnected("the client has not answered other requests")
            client.send_request(
                command.code,
                partial(_answer_broker, connection, command),
                fields=fields,
                body=command.body,
            )
        except NotConnected as error:
            if not command.is_oneway:
                refuse(connection, command, Refused(ResponseCode.SYSTEM_ERROR, str(error)))

    # Inside.

    def _own_connector(self, command: Command) -> Connector:
        if self._connector is None:
            self._connector = Connector(
                on_request=self._ask_client,
                tls=client_context(self._session.config),
                sender=(command.language, command.version),
            )
        return self._connector

    def _start(self, work: Coroutine[Any, Any, None], command: Command) -> None:
        task = asyncio.ensure_future(self._run(work, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], command: Command) -> None:
        try:
            await work
        except RouteNotFound as error:
            self._refuse(command, Refused(ResponseCode.SYSTEM_ERROR, str(error)))
        except RocketpostError as error:
            text = f"not passed on: {error}"
            self._refuse(command, Refused(ResponseCode.SERVICE_NOT_AVAILABLE, text))
        except Exception:
            logger.exception("request not passed on: code=%s", command.code)
            text = "the proxy failed; see its log"
            self._refuse(command, Refused(ResponseCode.SYSTEM_ERROR, text))

    def _refuse(self, command: Command, refused: Refused) -> None:
        if not command.is_oneway:
            refuse(self._client, command, refused)


def _answer_broker(broker: Connection, command: Command, answer: Command | ConnectionLost) -> None:
    if isinstance(answer, ConnectionLost):
        refuse(broker, command, Refused(ResponseCode.SYSTEM_ERROR, "the client is gone"))
    else:
        answer_as(broker, command, answer)


def answer_as(connection: Connection, command: Command, answer: Command) -> None:
    """Answer a request as another server has answered it."""
    if not connection.is_open:
        return
    head = encode_response(
        command,
        answer.code,
        remark=answer.remark,
        fields=answer.fields or None,
        body_bytes=len(answer.body),
    )
    connection.answer(head, *([answer.body] if answer.body else []))


def refuse(connection: Connection, command: Command, refused: Refused) -> None:
    """Answer a request with a refusal of the proxy itself."""
    if connection.is_open:
        connection.answer(encode_response(command, refused.code, remark=refused.remark))


def at_proxy(route: TopicRoute, address: str) -> TopicRoute:
    """Return a route whose brokers are all at the address of the proxy."""
    return TopicRoute(
        broker_datas=list(_at_proxy(route.broker_datas, address)),
        queue_datas=route.queue_datas,
        order_topic_conf=route.order_topic_conf,
    )


def _at_proxy(brokers: Iterable[BrokerData], address: str) -> Iterable[BrokerData]:
    for broker in brokers:
        if broker.broker_addrs:
            yield BrokerData(
                broker_addrs={MASTER_ID: address},
                broker_name=broker.broker_name,
                cluster=broker.cluster,
            )
