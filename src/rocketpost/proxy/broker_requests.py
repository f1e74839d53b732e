"""Requests of brokers to clients of the proxy, as commands on their telemetry streams.

    CHECK_TRANSACTION_STATE     the end of a transaction is unknown: ask its producer
    CONSUME_MESSAGE_DIRECTLY    an operator has a consumer handle a message now
    GET_CONSUMER_RUNNING_INFO   an operator asks for a consumer's subscriptions and stacks

Consumers of this protocol do not share queues among themselves, so they need no notice when a
group's members change.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import msgspec

from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Answer, answer_request
from rocketpost.codec.bodies.client import CONSUME_TYPES
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.client import RunningInfoRequest
from rocketpost.codec.headers.transaction import CheckTransaction
from rocketpost.codec.lenient_json import encode
from rocketpost.codec.record import decode_record
from rocketpost.errors import RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.route import MessageQueue
from rocketpost.proxy.backend import BrokerRequest
from rocketpost.proxy.clients import ClientTable, GrpcClient
from rocketpost.proxy.delivery import delivered_message
from rocketpost.proxy.handles import TransactionId
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.registration import heartbeat_of
from rocketpost.proxy.rights import Guard, pub
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import Resource, TelemetryCommand
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 1024
"""Most commands to clients that are not answered yet."""
_RESULTS: Final = {
    int(Code.OK): "CR_SUCCESS",
    int(Code.FAILED_TO_CONSUME_MESSAGE): "CR_LATER",
    int(Code.MESSAGE_CORRUPTED): "CR_RETURN_NULL",
}


class _Outcome(msgspec.Struct, rename="camel", kw_only=True):
    auto_commit: bool = True
    consume_result: str
    order: bool = False
    remark: str = ""
    spent_time_mills: int = 0


class BrokerRequests:
    """Passes requests of brokers on. Belongs to the event loop.

    Args:
        clients: The clients.
        guard: Access control: no client is asked about a message of a topic that it may not use.
        config: The settings.
    """

    def __init__(self, clients: ClientTable, guard: Guard, config: ProxyConfig) -> None:
        self._clients = clients
        self._guard = guard
        self._seconds = config.command_seconds
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def serve_for(self, client: GrpcClient | None) -> BrokerRequest:
        """Return the function that serves the requests of brokers to a client.

        Args:
            client: The client; None for connections that several clients share.
        """
        return partial(self.serve, client)

    def serve(self, client: GrpcClient | None, connection: Connection, command: Command) -> None:
        """Serve a request of a broker."""
        work: Coroutine[Any, Any, Answer | None]
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            work = self._check(client, command)
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and client is not None:
            work = self._verify(client, command)
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO and client is not None:
            work = self._inspect(client, command)
        else:
            remark = f" request type {command.code} not supported"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            answer_request(connection, command, Answer(code=code, remark=remark))
            return
        task = asyncio.ensure_future(self._run(work, connection, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_answer(self, nonce: str, command: Any) -> None:
        """Take the answer of a client."""
        waiting = self._pending.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    async def close(self) -> None:
        """Stop passing on requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self,
        work: Coroutine[Any, Any, Answer | None],
        connection: Connection,
        command: Command,
    ) -> None:
        try:
            answer = await work
        except RocketpostError as error:
            answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception as error:
            logger.exception("request of a broker failed: code=%s", command.code)
            answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=repr(error))
        if answer is not None:
            answer_request(connection, command, answer)

    async def _check(self, client: GrpcClient | None, command: Command) -> None:
        """Ask a producer how a transaction ended; it answers by EndTransaction, or not at all."""
        asked = command.read(CheckTransaction)
        received = _message(command)
        topic = received.properties.get(names.REAL_TOPIC) or received.topic

        def may_send(producer: GrpcClient) -> bool:
            try:
                self._guard.check(producer.identity, producer.user, [pub(topic)], "Telemetry")
            except Refusal:
                return False
            return True

        if client is None or not client.streams or not may_send(client):
            client = self._clients.producer_of(topic, may_send)
        if client is None:
            logger.info("no producer to ask about a transaction: topic=%s", topic)
            return
        broker = asked.broker_name or ""
        half = TransactionId(
            broker, asked.tran_state_table_offset, asked.commit_log_offset, received.message_id
        )
        message = delivered_message(received, Resource(name=topic))
        question = TelemetryCommand()
        question.recover_orphaned_transaction_command.message.CopyFrom(message)
        question.recover_orphaned_transaction_command.transaction_id = str(half)
        if not await client.send(question):
            logger.info("producer not asked about a transaction: client=%s", client)

    async def _verify(self, client: GrpcClient, command: Command) -> Answer:
        received = _message(command)
        nonce = secrets.token_hex(16)  # an answer proves that it was asked
        question = TelemetryCommand()
        question.verify_message_command.nonce = nonce
        message = delivered_message(received, Resource(name=received.topic))
        question.verify_message_command.message.CopyFrom(message)
        started = time.monotonic()
        answer = await self._ask(client, nonce, question)
        if answer is None:
            return _silent(client, self._seconds)
        code = answer.status.code
        outcome = _Outcome(
            consume_result=_RESULTS.get(code, "CR_THROW_EXCEPTION"),
            remark=answer.status.message,
            spent_time_mills=round((time.monotonic() - started) * 1000),
        )
        return Answer(encode(outcome))

    async def _inspect(self, client: GrpcClient, command: Command) -> Answer:
        asked = command.read(RunningInfoRequest)
        stacks = ""
        if asked.jstack_enable:
            nonce = secrets.token_hex(16)
            question = TelemetryCommand()
            question.print_thread_stack_trace_command.nonce = nonce
            answer = await self._ask(client, nonce, question)
            stacks = "" if answer is None else answer.thread_stack_trace.thread_stack_trace
        heartbeat = heartbeat_of(client.identity, client.settings, client.topics)
        subscriptions = [
            each for data in heartbeat.consumer_data_set for each in data.subscription_data_set
        ]
        info = {
            "jstack": stacks,
            "mqPopTable": {},
            "mqTable": {},
            "properties": _properties(client),
            "statusTable": {},
            "subscriptionSet": subscriptions,
            "userConsumerInfo": {},
        }
        return Answer(encode(info))

    async def _ask(self, client: GrpcClient, nonce: str, question: Any) -> Any | None:
        """Send a command and return its answer; None if there is none in time."""
        if len(self._pending) >= PENDING_MAX:
            return None
        waiting = self._pending[nonce] = asyncio.get_running_loop().create_future()
        try:
            if not await client.send(question):
                return None
            async with asyncio.timeout(self._seconds):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._pending[nonce]


def _message(command: Command) -> ReceivedMessage:
    record = decode_record(command.body)
    return ReceivedMessage(record, MessageQueue("", record.queue_id, record.topic))


def _silent(client: GrpcClient, seconds: int) -> Answer:
    text = f"the client {client.identity.client_id} did not answer in {seconds} s"
    return Answer(code=ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)


def _properties(client: GrpcClient) -> dict[str, str]:
    identity = client.identity
    return {
        "PROP_CLIENT_VERSION": f"{identity.language} {identity.version} (gRPC)",
        "PROP_CONSUMEORDERLY": "false",
        # Members do not divide the queues among themselves: each receives from all of them.
        "PROP_CONSUME_TYPE": CONSUME_TYPES[2],
        "PROP_CONSUMER_START_TIMESTAMP": str(client.started_ms),
    }
