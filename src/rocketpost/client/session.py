"""The session of a client: connections, name servers, routes, heartbeats, answers to brokers.

One session is one client id. Producers and consumers are built on it; it does not handle messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from rocketpost.client.config import ClientConfig
from rocketpost.client.hub import find_hub
from rocketpost.client.name_servers import (
    HTTP_EVERY_SECONDS,
    HTTP_FIRST_SECONDS,
)
from rocketpost.client.outages import Outages
from rocketpost.client.patience import patiently
from rocketpost.client.route_cache import RouteCache
from rocketpost.client.tasks import BackgroundTasks, repeat
from rocketpost.codec.bodies.client import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    encode_heartbeat,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, encode_response, to_fields
from rocketpost.codec.faults import fault_for
from rocketpost.codec.headers.client import Unregister
from rocketpost.errors import ClientError, ConnectionLost, Fault, RequestTimeout, RocketpostError
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.transport.connection import Buffer, Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.host import local_ip

logger = logging.getLogger(__name__)

_FIRST_HEARTBEAT_SECONDS = 1.0
_UNREGISTER_SECONDS = 1.0
_LONG_CONNECT_SECONDS = 0.25
_UNSIGNED = "the request was not signed: a broker with access control requires credentials"
_CONTROL_IS_OFF = "access control is off"
_ACCESS_WORDS = ("username cannot be null", "accesskey", "aclexception", "signature", "authentic")

T = TypeVar("T")
RequestHandler = Callable[[Connection, Command], "Answer | None"]
Takes = Callable[[Command], bool]


def _is_about_access(response: Command) -> bool:
    """Tell whether a refusal is due to missing or wrong credentials, not to a setting."""
    if response.code not in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
        return False
    remark = (response.remark or "").lower()
    return _CONTROL_IS_OFF not in remark and any(word in remark for word in _ACCESS_WORDS)


class Answer(msgspec.Struct):
    """Our answer to a request of a broker."""

    body: bytes = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None


def make_client_id(config: ClientConfig) -> str:
    """Return the client id: address, instance and unit."""
    ip = config.client_ip or local_ip()
    instance = config.instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
    return f"{ip}@{instance}" + (f"@{config.unit_name}" if config.unit_name else "")


class Session:
    """The shared machinery of one client. Belongs to the event loop that started it."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        auto_create_queues: int = 4,
        auto_create_topic: str = AUTO_CREATE_TOPIC,
    ) -> None:
        self.config = config
        self.client_id = make_client_id(config)
        self._hub = find_hub(config, self.client_id, Connector)
        self.connector = self._hub.connector
        self.name_servers = self._hub.name_servers
        self.routes = RouteCache(
            self._ask, auto_create_queues=auto_create_queues, auto_create_topic=auto_create_topic
        )
        self.tasks = BackgroundTasks()
        self.outages = Outages()
        self.broker_versions: dict[str, int] = {}
        self._handlers: dict[int, tuple[RequestHandler, Takes | None]] = {}
        self._producers: list[str] = []
        self._consumers: list[Callable[[], ConsumerData]] = []
        self._reconnected: list[Callable[[], None]] = []
        self._lost: list[Callable[[str], None]] = []
        self.heartbeat: tuple[list[str], bytes] = [], b""
        """The last heartbeat and its recipients; replaced as a whole, so any thread may read it."""
        self.heartbeat_sent = 0.0
        """Time of the last heartbeat, on the monotonic clock."""
        self._remarks: dict[str, str | None] = {}
        self._connecting: dict[str, asyncio.Task[tuple[str, Connection]]] = {}
        self._started = False

    @property
    def is_running(self) -> bool:
        """Whether the session was started and not stopped."""
        return self._started

    async def start(self) -> None:
        """Find the name servers and start the periodic work.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        self._hub.join(self)
        try:
            await self.name_servers.start()
        except BaseException:
            await self._hub.leave(self)
            raise
        self._started = True
        config = self.config
        routes = repeat(
            self.routes.refresh_all,
            every=config.route_seconds,
            first=config.route_seconds,
            what="routes",
        )
        self.tasks.start(routes, name="refresh routes")
        beats = repeat(
            self._periodic_heartbeat,
            every=config.heartbeat_seconds,
            first=_FIRST_HEARTBEAT_SECONDS,
            what="heartbeat",
        )
        self.tasks.start(beats, name="heartbeat")
        if self.name_servers.uses_http:
            polls = repeat(
                self.name_servers.poll,
                every=HTTP_EVERY_SECONDS,
                first=HTTP_FIRST_SECONDS,
                what="address server",
            )
            self.tasks.start(polls, name="poll address server")

    async def stop(self) -> None:
        """Unregister from the brokers and close everything."""
        if not self._started:
            return
        self._started = False
        try:
            await self.tasks.stop()
            for task in self._connecting.values():
                task.cancel()
            await self.routes.close()
            await self._unregister()
        finally:
            await self._hub.leave(self)

    # Groups.

    @property
    def groups(self) -> list[tuple[str, str]]:
        """The groups announced to brokers, each with its kind."""
        return [
            *(("producer", group) for group in self._producers),
            *(("consumer", describe().group_name) for describe in self._consumers),
        ]

    def add_producer(self, group: str) -> None:
        """Announce a producer group to brokers from now on.

        Raises:
            ClientError: Another client with this id has it.
        """
        self._hub.check_group(self, "producer", group)
        self._producers.append(group)

    def add_consumer(self, describe: Callable[[], ConsumerData]) -> None:
        """Announce a consumer group to brokers from now on; each heartbeat calls ``describe``.

        Raises:
            ClientError: Another client with this id has it.
        """
        self._hub.check_group(self, "consumer", describe().group_name)
        self._consumers.append(describe)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after a broker was connected and received our groups."""
        self._reconnected.append(callback)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the address of each server whose connection is lost."""
        self._lost.append(callback)

    def on(self, code: int, handler: RequestHandler, *, takes: Takes | None = None) -> None:
        """Serve requests of brokers with ``handler``; it returns None for no answer now.

        ``takes`` recognizes our requests among those of clients that share connections.
        """
        self._handlers[code] = handler, takes

    # Calls.

    async def call(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | Mapping[str, str] | None = None,
        *,
        body: Iterable[Buffer] | Buffer = b"",
        timeout: float | None = None,
        accept: frozenset[int] = frozenset(),
    ) -> Command:
        """Send a request to a broker and return its response.

        Args:
            address: The broker.
            code: The request code.
            header: The header fields.
            body: The body.
            timeout: Seconds to wait; the configured ones if None.
            accept: Response codes that are not failures, in addition to success.

        Raises:
            Fault: The broker refuses.
            RequestTimeout: It does not answer.
            ConnectionLost: It cannot be reached, or is lost.
        """
        fields = to_fields(header) if isinstance(header, msgspec.Struct) else header
        connection = await self.connector.connect(address)
        sent_at = asyncio.get_running_loop().time()
        try:
            response = await connection.request(
                code, fields=fields, body=body, timeout=timeout or self.config.call_timeout
            )
        except RequestTimeout:
            self.no_answer(address, sent_at)
            raise
        if response.code != ResponseCode.SUCCESS and response.code not in accept:
            raise self.refusal(response)
        return response

    async def patiently(
        self,
        topic: str,
        call: Callable[[], Awaitable[T]],
        *,
        seconds: float | None = None,
        after: type[ConnectionLost] = ConnectionLost,
    ) -> T:
        """Make a call to a broker of ``topic``, repeating it while the broker cannot be reached.

        Args:
            topic: The topic whose route is refreshed before each further attempt.
            call: Makes the call, to the address known at that time.
            seconds: Time limit; ``call_timeout`` if None.
            after: The failure to repeat after; see :func:`patience.patiently`.

        Raises:
            ConnectionLost: The broker could not be reached in time.
        """
        return await patiently(
            call,
            seconds=seconds or self.config.call_timeout,
            refresh=lambda: self.routes.refresh(topic),
            after=after,
        )

    async def send_oneway(
        self, address: str, code: int, header: msgspec.Struct, *, body: bytes = b""
    ) -> None:
        """Send a request that gets no response.

        Raises:
            ConnectionLost: The broker cannot be reached.
        """
        connection = await self.connector.connect(address)
        connection.send_oneway(code, fields=to_fields(header), body=body)

    def refusal(self, response: Command) -> Fault:
        """Return a broker's refusal with a hint about what may help."""
        fault = fault_for(response.code, response.remark)
        if self.config.credentials is None and _is_about_access(response):
            fault.add_note(_UNSIGNED)
        return fault

    async def connect_master(self, broker_name: str, topic: str) -> tuple[str, Connection]:
        """Return the address of a broker's master, and the connection to it.

        A machine that has vanished refuses no connection. So the route is fetched again while an
        attempt takes long: another broker may have become the master.

        Raises:
            RouteNotFound: No master is known.
            NotConnected: It cannot be reached.
            ConnectionLost: The client is closed.
        """
        task = self._connecting.get(broker_name)
        if task is None:
            work = self._connect_master(broker_name, topic)
            task = self._connecting[broker_name] = asyncio.ensure_future(work)
            task.add_done_callback(lambda done: self._end_connecting(broker_name, done))
        # Shielded: one impatient caller must not cancel what others wait for. All wait for the same
        # task, so that they continue in the order of their calls.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not self._started:
                raise ConnectionLost("the client is closed") from None
            raise

    async def _connect_master(self, broker_name: str, topic: str) -> tuple[str, Connection]:
        while True:
            address = self.routes.master(broker_name)
            try:
                async with asyncio.timeout(_LONG_CONNECT_SECONDS):
                    return address, await self.connector.connect(address)
            except TimeoutError:
                await self.routes.refresh(topic)

    def _end_connecting(self, broker_name: str, done: asyncio.Task[tuple[str, Connection]]) -> None:
        del self._connecting[broker_name]
        if not done.cancelled():
            done.exception()  # mark it as retrieved, even if all callers are gone

    def no_answer(self, address: str, sent_at: float) -> None:
        """Drop a connection on which nothing has arrived since ``sent_at``.

        Otherwise only TCP would notice a vanished peer, after minutes. One slow answer among others
        is no reason to break the connection.
        """
        connection = self.connector.peek(address)
        if connection is not None and connection.heard_at < sent_at:
            logger.info("connection dropped: peer=%s reason=silent", address)
            self.connector.drop(address)

    # Heartbeats.

    async def heartbeat_all(self) -> None:
        """Send a heartbeat to every known broker; log failures."""
        if not (self._producers or self._consumers):
            return
        addresses = self.routes.broker_addresses(masters_only=not self._consumers)
        body = self._heartbeat_body()
        self.heartbeat, self.heartbeat_sent = (addresses, body), time.monotonic()
        await asyncio.gather(*(self._heartbeat(address, body) for address in addresses))

    async def heartbeat_at(self, address: str) -> None:
        """Send a heartbeat to one broker."""
        if self._producers or self._consumers:
            await self._heartbeat(address, self._heartbeat_body())

    async def _heartbeat(self, address: str, body: bytes) -> None:
        try:
            response = await self.call(address, RequestCode.HEART_BEAT, body=body)
            self.broker_versions[address] = response.version
            self._tell_remark(address, response.remark)
            self.outages.report_success(self.routes.broker_name_at(address))
        except (ClientError, Fault) as error:
            self.outages.report_broker_failure(
                "heartbeat failed", self.routes.broker_name_at(address), error
            )

    def _tell_remark(self, address: str, remark: str | None) -> None:
        """Log a broker's remark on a heartbeat, once until it changes."""
        if remark and self._remarks.get(address) != remark:
            logger.warning("heartbeat answered: broker=%s remark=%s", address, remark)
        self._remarks[address] = remark

    def _heartbeat_body(self) -> bytes:
        heartbeat = Heartbeat(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[describe() for describe in self._consumers],
        )
        return encode_heartbeat(heartbeat)

    async def _periodic_heartbeat(self) -> None:
        self.routes.drop_offline()
        await self.heartbeat_all()

    async def _unregister(self) -> None:
        me = self.client_id
        consumers = [describe().group_name for describe in self._consumers]
        leaves = [
            self._unregister_at(address, leave)
            for address in self.routes.broker_addresses(masters_only=not consumers)
            if self.connector.peek(address) is not None
            for leave in [
                *(Unregister(client_id=me, producer_group=group) for group in self._producers),
                *(Unregister(client_id=me, consumer_group=group) for group in consumers),
            ]
        ]
        await asyncio.gather(*leaves)

    async def _unregister_at(self, address: str, leave: Unregister) -> None:
        try:
            await self.call(
                address, RequestCode.UNREGISTER_CLIENT, leave, timeout=_UNREGISTER_SECONDS
            )
        except RocketpostError as error:
            logger.info("not unregistered: broker=%s reason=%s", address, error)

    # Called by connections.

    async def _ask(self, code: int, fields: dict[str, str]) -> Command:
        return await self.name_servers.request(code, fields=fields)

    def handle_connected(self, address: str) -> None:
        """Send a heartbeat to a newly connected broker."""
        if self._started and address not in self.name_servers.addresses:
            self.tasks.start(self._greet(address), name=f"greet {address}")

    def handle_disconnected(self, address: str) -> None:
        """Call the callbacks for a lost connection."""
        if self._started:
            for callback in self._lost:
                callback(address)

    async def _greet(self, address: str) -> None:
        await self.heartbeat_at(address)
        for callback in self._reconnected:
            callback()

    def serves(self, command: Command) -> bool | None:
        """Tell whether a request is ours; None if it does not say."""
        _, takes = self._handlers.get(command.code, (None, None))
        if command.code not in self._handlers:
            return False
        return None if takes is None else takes(command)

    def serve(self, connection: Connection, command: Command) -> None:
        """Serve a request of a broker."""
        handler, _ = self._handlers.get(command.code, (None, None))
        if handler is None:
            remark = f" request type {command.code} not supported"
            answer_request(
                connection,
                command,
                Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark),
            )
            return
        try:
            answer = handler(connection, command)
        except RocketpostError as error:
            answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        if answer is not None:
            answer_request(connection, command, answer)


def answer_request(connection: Connection, command: Command, answer: Answer) -> None:
    """Answer a broker's request, unless it is oneway or the connection is gone."""
    if command.is_oneway or not connection.is_open:
        return
    head = encode_response(command, answer.code, remark=answer.remark, body_bytes=len(answer.body))
    connection.answer(head, *([answer.body] if answer.body else []))
