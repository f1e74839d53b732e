"""Requests of tools that the broker passes on to a connected client, and the client's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, cast

from rocketpost.broker.group.membership import Client, Membership
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ConsumeTimedOut, InvalidParameter, ServerError, SystemBusy
from rocketpost.codec.headers.client import ConsumeDirectly, RunningInfoRequest
from rocketpost.codec.record import Record, parse_message_id
from rocketpost.errors import ConnectionLost, RemoteProtocolError, RequestTimeout
from rocketpost.server.routes.access import GET, SUB, of_group, of_message_id
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.server.tables.broker_tables import Tables
from rocketpost.transport.connection import Buffer, Connection

RELAYS_MAX: Final = 64
"""Most unanswered requests passed on to one client."""
_RELAY_SECONDS: Final = 10.0
_VERSION_RUNNING_INFO: Final = 62  # 3.1.8: older clients cannot be asked.


class Records(Protocol):
    """The part of the store that passing on a message uses."""

    def record_at(self, position: int) -> Record | None:
        """Return the record at ``position``."""
        ...

    def view(self, position: int, size: int) -> memoryview | None:
        """Return bytes of the log."""
        ...


class RelayHandlers:
    """Passes requests on to consumers. Owned by the loop."""

    def __init__(
        self, *, membership: Membership, tables: Tables, records: Records, broker_name: str
    ) -> None:
        self._membership = membership
        self._topics = tables.topics
        self._groups = tables.groups
        self._records = records
        self._broker_name = broker_name

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests that are passed on."""
        return [
            waiting(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                RunningInfoRequest,
                of_group(GET, field="consumer_group"),
                self.running_info,
                PoolKind.CLIENTS,
            ),
            waiting(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                ConsumeDirectly,
                of_group(SUB, field="consumer_group") + of_message_id(SUB),
                self.consume_directly,
                PoolKind.CLIENTS,
            ),
        ]

    async def running_info(
        self, connection: Connection, command: Command, header: RunningInfoRequest
    ) -> Reply:
        """Ask a consumer for its running information; pass its answer back unread."""
        target = self._online(header.consumer_group, header.client_id)
        return await _relay(target, command.code, command.fields, command.body)

    async def consume_directly(
        self, connection: Connection, command: Command, header: ConsumeDirectly
    ) -> Reply:
        """Ask a consumer to consume a stored message now, and return its report."""
        target = self._online(header.consumer_group, header.client_id)
        record, body = self._message(header.msg_id)
        topic = self._topics.find(record.topic)
        group = self._groups.find(header.consumer_group)
        fields = {
            **command.fields,
            "brokerName": self._broker_name,
            "topic": record.topic,
            "topicSysFlag": str(topic.topic_sys_flag if topic else 0),
            "groupSysFlag": str(group.group_sys_flag if group else 0),
        }
        return await _relay(target, command.code, fields, body)

    def _online(self, group: str, client_id: str) -> Client:
        client = self._membership.consumer(group, client_id)
        if client is None:
            raise ServerError(f"the consumer {client_id} of the group {group} is not online")
        if client.version < _VERSION_RUNNING_INFO:
            raise ServerError(f"the consumer {client_id} is too old to be asked")
        return client

    def _message(self, message_id: str) -> tuple[Record, memoryview]:
        try:
            _, position = parse_message_id(message_id)
        except RemoteProtocolError as error:
            raise InvalidParameter(f"msgId: {error}") from None
        record = self._records.record_at(position) if position >= 0 else None
        body = None if record is None else self._records.view(position, record.size)
        if record is None or body is None:
            raise ServerError(f"there is no message {message_id} here")
        return record, body


async def _relay(client: Client, code: int, fields: dict[str, str], body: Buffer) -> Reply:
    target = cast(Connection, client.connection)
    if target.unanswered_count >= RELAYS_MAX:
        raise SystemBusy(
            f"[OVERLOAD]the consumer {client.client_id} has not answered {RELAYS_MAX} requests yet"
        )
    try:
        response = await target.request(code, fields=fields, body=body, timeout=_RELAY_SECONDS)
    except RequestTimeout:
        raise ConsumeTimedOut(
            f"the consumer {client.client_id} did not answer in {_RELAY_SECONDS:g} s"
        ) from None
    except ConnectionLost as error:
        raise ServerError(f"the consumer {client.client_id} went away: {error}") from None
    return Reply(response.code, fields=response.fields, body=response.body, remark=response.remark)
