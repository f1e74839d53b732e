"""Clients: heartbeats, connected members and locks.

When the members of a consumer group change, every member is notified to share the queues anew. If a
member unregisters, the others are notified when its connection closes, or after a moment if it
stays open. Java's client sends its last offsets without waiting for an answer, and they arrive
after it unregisters. A member that took over its queues too early would repeat its last messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

from msgspec import UNSET

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.group.membership import Client, JoinResult, Membership
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.table import GroupTable, group_not_exist
from rocketpost.broker.steps import Steps
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.client import (
    ConnectionData,
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    LockResponse,
    ProducerConnections,
    ProducerInfo,
    ProducerTableBody,
    decode_client_config_check,
    decode_heartbeat,
    decode_lock_request,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import (
    ConsumerNotOnline,
    GroupNotExist,
    InvalidParameter,
    ServerError,
    ServiceNotAvailable,
    SystemBusy,
)
from rocketpost.codec.headers.client import (
    ConsumerGroupRequest,
    HeartbeatResponse,
    ProducerGroupRequest,
    Unregister,
)
from rocketpost.errors import StoreError
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import group_problem, retry_topic
from rocketpost.model.route import MessageQueue
from rocketpost.server.handlers.replies import fields_reply, json_reply, read_body
from rocketpost.server.notices import Notices
from rocketpost.server.routes.access import GET, SUB, of_cluster, of_group
from rocketpost.server.routes.body_access import CLIENT_CONFIG, HEARTBEAT, LOCKS
from rocketpost.server.routes.dispatch import REMARK_LENGTH_MAX
from rocketpost.server.routes.route import (
    NO_HEADER,
    Reply,
    Route,
    finish_in_turns,
    in_slices,
    plain,
    waiting,
)
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

CLIENT_ID_LENGTH_MAX: Final = 1024
HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
"""Room for some 7,000 subscriptions; reading them takes a tenth of a second."""
_AT_A_STEP: Final = 128
_LOCKS_AT_A_STEP: Final = 512
LEAVE_SECONDS: Final = 0.5  # On a busy machine Java's offsets came 20 ms late.


class ClientHandlers:
    """Serves clients, and notices when they leave. Owned by the loop."""

    def __init__(
        self,
        *,
        membership: Membership,
        groups: GroupTable,
        topics: TopicTable,
        locks: QueueLocks,
        filters: Filters,
        notices: Notices,
    ) -> None:
        self._membership = membership
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._filters = filters
        self._notices = notices
        self._leaving: dict[Connection, dict[str, asyncio.TimerHandle]] = {}

    def routes(self) -> Sequence[Route]:
        """Return the routes of clients, and of requests about clients."""
        return [
            in_slices(RequestCode.HEART_BEAT, NO_HEADER, HEARTBEAT, self.heartbeat),
            plain(
                RequestCode.UNREGISTER_CLIENT,
                Unregister,
                of_group(SUB, field="consumer_group", optional=True),
                self.unregister,
            ),
            plain(RequestCode.CHECK_CLIENT_CONFIG, NO_HEADER, CLIENT_CONFIG, self.check_config),
            plain(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                ConsumerGroupRequest,
                of_group(SUB, GET, field="consumer_group"),
                self.consumer_ids,
            ),
            plain(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                ConsumerGroupRequest,
                of_group(GET, field="consumer_group"),
                self.consumers,
            ),
            plain(
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                ProducerGroupRequest,
                of_cluster(GET),
                self.producers,
            ),
            in_slices(
                RequestCode.GET_ALL_PRODUCER_INFO, NO_HEADER, of_cluster(GET), self.all_producers
            ),
        ]

    # Joining and leaving.

    def heartbeat(self, connection: Connection, command: Command, header: None) -> Steps[Reply]:
        """Record the groups of a client."""
        if len(command.body) > HEARTBEAT_BYTES_MAX:
            raise InvalidParameter(f"a heartbeat takes at most {HEARTBEAT_BYTES_MAX} bytes")
        heartbeat = read_body(command, decode_heartbeat)
        if not heartbeat.client_id.strip() or len(heartbeat.client_id) > CLIENT_ID_LENGTH_MAX:
            raise InvalidParameter("the heartbeat has no usable clientID")
        client = Client(
            connection,
            heartbeat.client_id,
            connection.peer_text,
            command.language,
            command.version,
            heartbeat.protocol or "",
            heartbeat.client_version or "",
        )
        for number, producer in enumerate(heartbeat.producer_data_set, 1):
            if number % _AT_A_STEP == 0:
                yield
            if problem := group_problem(producer.group_name):
                logger.warning("producer skipped: peer=%s reason=%s", client.address, problem)
                continue
            self._membership.join_producer(producer.group_name, client)
        stale = False
        refused: list[str] = []
        for number, consumer in enumerate(heartbeat.consumer_data_set):
            if number:
                yield
            by = f"{client.address} cause=heartbeat client={client.client_id}"
            try:
                group = self._groups.require(consumer.group_name, by=by)
            except (GroupNotExist, SystemBusy) as error:  # its other groups are accepted
                logger.warning(
                    "consumer skipped: peer=%s group=%r reason=%s",
                    client.address,
                    consumer.group_name,
                    error,
                )
                refused.append(error.remark)
                continue
            joined = self._join(client, consumer, heartbeat, group, by=by)
            stale = stale or joined.stale
        # A client without a fingerprint must continue to send all its subscriptions.
        wanted = bool(stale or refused) or not heartbeat.heartbeat_fingerprint
        reply = fields_reply(HeartbeatResponse(subscriptions_wanted=wanted))
        return reply._replace(remark="; ".join(refused)[:REMARK_LENGTH_MAX] or None)

    def unregister(self, connection: Connection, command: Command, header: Unregister) -> Reply:
        """Remove a client from the groups that it names."""
        left = self._membership.leave(
            connection,
            producer_group=header.producer_group,
            consumer_group=header.consumer_group,
        )
        self._forget_filters(left)
        loop = asyncio.get_running_loop()
        for group in left:
            leaving = self._leaving.setdefault(connection, {})
            if group in leaving:  # it had joined again in between
                leaving[group].cancel()
            leaving[group] = loop.call_later(LEAVE_SECONDS, self._tell_of_leave, connection, group)
        return Reply()

    def connection_lost(self, connection: Connection) -> None:
        """Remove a lost client from its groups."""
        leaving = self._leaving.pop(connection, {})
        for timer in leaving.values():
            timer.cancel()
        self._notices.notify(leaving)
        self._handle_leave(self._membership.forget_connection(connection))

    def expire(self) -> None:
        """Remove silent clients and expired locks; called at least every 10 s."""
        left = self._membership.expire()
        for connection in left.connections:
            cast(Connection, connection).close()
        self._handle_leave(left.groups)
        self._locks.expire()
        self._filters.table.expire()

    def check_config(self, connection: Connection, command: Command, header: None) -> Reply:
        """Check that a subscription can be served."""
        subscription = read_body(command, decode_client_config_check).subscription_data
        if not subscription.is_tag:
            self._filters.check(subscription.expression_type, subscription.sub_string)
        return Reply()

    # Connected clients.

    def consumer_ids(
        self, connection: Connection, command: Command, header: ConsumerGroupRequest
    ) -> Reply:
        """List the client ids of a group, by which its members share the queues."""
        group = header.consumer_group
        members = self._membership.consumer_group(group)
        if members is None:
            if self._groups.find(group) is None and not self._groups.auto_create:
                raise group_not_exist(group)
            raise ServerError(f"no consumer of the group {group} is online")
        return json_reply(ConsumerIds(members.client_ids))

    def consumers(
        self, connection: Connection, command: Command, header: ConsumerGroupRequest
    ) -> Reply:
        """List the connections of a consumer group and its subscriptions."""
        group = header.consumer_group
        members = self._membership.consumer_group(group)
        if members is None:
            raise ConsumerNotOnline(f"no consumer of the group {group} is online")
        return json_reply(
            ConsumerConnections(
                connection_set=[_connection(each.client) for each in members.members.values()],
                consume_from_where=members.consume_from_where,
                consume_type=members.consume_type,
                message_model=members.message_model,
                subscription_table=members.subscriptions,
            )
        )

    def producers(
        self, connection: Connection, command: Command, header: ProducerGroupRequest
    ) -> Reply:
        """List the connections of a producer group."""
        group = header.producer_group
        members = self._membership.producers.get(group)
        if members is None:
            raise ServerError(f"no producer of the group {group} is online")
        return json_reply(
            ProducerConnections([_connection(each.client) for each in members.values()])
        )

    def all_producers(self, connection: Connection, command: Command, header: None) -> Steps[Reply]:
        """List every connected producer by group."""
        data: dict[str, list[ProducerInfo]] = {}
        for group, members in list(self._membership.producers.items()):
            data[group] = [
                ProducerInfo(
                    client_id=each.client.client_id,
                    language=each.client.language,
                    last_update_timestamp=each.last_ms,
                    remote_ip=f"/{each.client.address}",  # with the port, as in Java
                    version=each.client.version,
                    protocol=each.client.protocol or UNSET,
                    client_version=each.client.client_version or UNSET,
                )
                for each in members.values()
            ]
            if len(data) % _AT_A_STEP == 0:
                yield
        return json_reply(ProducerTableBody(data))

    # Inside.

    def _join(
        self,
        client: Client,
        consumer: ConsumerData,
        heartbeat: Heartbeat,
        config: GroupConfig,
        *,
        by: str,
    ) -> JoinResult:
        if self._groups.find(consumer.group_name) is not None:  # else its leader creates both
            # Tools find a group's brokers by the route of its retry topic, so it must exist early.
            self._topics.create_internal(
                retry_topic(consumer.group_name),
                queue_nums=config.retry_queue_nums,
                order=config.consume_message_orderly,
                unit=consumer.unit_mode,
                by=by,
            )
        joined = self._membership.join_consumer(
            consumer.group_name,
            client,
            consume_type=consumer.consume_type,
            message_model=consumer.message_model,
            consume_from_where=consumer.consume_from_where,
            subscriptions=None if heartbeat.without_sub else consumer.subscription_data_set,
            fingerprint=heartbeat.heartbeat_fingerprint,
        )
        if not heartbeat.without_sub:
            self._filters.table.update(consumer.group_name, consumer.subscription_data_set)
        if joined.changed:
            self._notices.notify([consumer.group_name])
        return joined

    def _handle_leave(self, groups: Sequence[str]) -> None:
        self._forget_filters(groups)
        self._notices.notify(groups)

    def _forget_filters(self, groups: Iterable[str]) -> None:
        for group in groups:
            if self._membership.consumer_group(group) is None:
                self._filters.table.mark_dead(group)

    def _tell_of_leave(self, connection: Connection, group: str) -> None:
        leaving = self._leaving[connection]
        del leaving[group]
        if not leaving:
            del self._leaving[connection]
        self._notices.notify([group])


class LockHandlers:
    """Serves the locks of orderly groups.

    Args:
        locks: The locks.
        topics: The topics.
        grants: Tells whether clients may lock queues here. Other members of this broker's group
            always may: they pass on locks that they have granted.

    Attributes:
        commit: Returns when new holders of queues are known to the group that this broker leads;
            None if it leads none.
    """

    def __init__(
        self, *, locks: QueueLocks, topics: TopicTable, grants: Callable[[], bool] = lambda: True
    ) -> None:
        self._locks = locks
        self._topics = topics
        self._grants = grants
        self.commit: Callable[[], Awaitable[None]] | None = None

    def routes(self) -> Sequence[Route]:
        """Return the routes of locks."""
        if self.commit is not None:
            return [
                waiting(RequestCode.LOCK_BATCH_MQ, NO_HEADER, LOCKS, self._lock_in_group),
                in_slices(RequestCode.UNLOCK_BATCH_MQ, NO_HEADER, LOCKS, self.unlock),
            ]
        return [
            in_slices(RequestCode.LOCK_BATCH_MQ, NO_HEADER, LOCKS, self.lock),
            in_slices(RequestCode.UNLOCK_BATCH_MQ, NO_HEADER, LOCKS, self.unlock),
        ]

    def lock(self, connection: Connection, command: Command, header: None) -> Steps[Reply]:
        """Lock queues for one client of a group; the answer lists those that it holds now."""
        request = read_body(command, decode_lock_request)
        if not request.only_this_broker and not self._grants():
            raise ServiceNotAvailable("this broker is a follower; lock queues at its leader")
        if problem := group_problem(request.consumer_group):
            raise InvalidParameter(problem)
        if len(request.client_id) > CLIENT_ID_LENGTH_MAX:
            raise InvalidParameter(f"clientId has more than {CLIENT_ID_LENGTH_MAX} characters")
        held: list[MessageQueue] = []
        for some in _split(request.mq_set):
            known = [queue for queue in some if self._is_known(queue)]
            held += self._locks.lock(request.consumer_group, request.client_id, known)
            if len(some) == _LOCKS_AT_A_STEP:
                yield
        return json_reply(LockResponse(held))

    async def _lock_in_group(self, connection: Connection, command: Command, header: None) -> Reply:
        """Lock queues, and answer when every later leader knows the new holders.

        Raises:
            ServiceNotAvailable: This broker no longer leads its group.
        """
        assert self.commit is not None
        reply = await finish_in_turns(self.lock(connection, command, header))
        try:
            await self.commit()  # also for a renewal: the first lock may not be committed yet
        except StoreError as error:
            raise ServiceNotAvailable(f"queues are not locked: {error}") from error
        return reply

    def unlock(self, connection: Connection, command: Command, header: None) -> Steps[Reply]:
        """Unlock queues that the client holds."""
        request = read_body(command, decode_lock_request)
        for some in _split(request.mq_set):
            self._locks.unlock(request.consumer_group, request.client_id, some)
            if len(some) == _LOCKS_AT_A_STEP:
                yield
        return Reply()

    def _is_known(self, queue: MessageQueue) -> bool:
        config = self._topics.find(queue.topic)
        if config is None:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)


def _split(queues: Iterable[MessageQueue]) -> Iterator[list[MessageQueue]]:
    left = iter(queues)
    while some := list(islice(left, _LOCKS_AT_A_STEP)):
        yield some


def _connection(client: Client) -> ConnectionData:
    return ConnectionData(
        client_addr=client.address,
        client_id=client.client_id,
        language=client.language,
        version=client.version,
        protocol=client.protocol or UNSET,
        client_version=client.client_version or UNSET,
    )
