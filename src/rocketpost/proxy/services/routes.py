"""QueryRoute and QueryAssignment: the queues that a client uses, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from rocketpost.errors import RouteNotFound
from rocketpost.model.route import BrokerData, QueueData, TopicRoute
from rocketpost.model.topic import PERM_READ, PERM_WRITE
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.calls import Call
from rocketpost.proxy.message_types import accepted_types
from rocketpost.proxy.refusals import OK, Refusal
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import group_name, topic_name
from rocketpost.proxy.wire.enums import Code, Permission
from rocketpost.proxy.wire.messages import (
    Endpoints,
    QueryAssignmentResponse,
    QueryRouteResponse,
    endpoints_at,
)

ALL_QUEUES: Final = -1
_QUEUES_MAX: Final = 65_536

EndpointsOf = Callable[[BrokerData, Any], Any]
"""Returns the endpoints of a broker, given those that the client has connected to."""


class RouteMethods:
    """Serves questions about queues. Belongs to the event loop.

    Args:
        backend: The brokers.
        endpoints_of: Returns where a client finds the queues of a broker.
    """

    def __init__(self, backend: Backend, endpoints_of: EndpointsOf) -> None:
        self._backend = backend
        self._endpoints_of = endpoints_of

    async def query_route(self, call: Call, request: Any) -> Any:
        """Return every queue of a topic."""
        topic = topic_name(request.topic)
        route = await self._route(topic)
        types = accepted_types(await self._backend.topic(topic))
        response = QueryRouteResponse(status=OK)
        for broker, data in _brokers(route):
            endpoints = self._endpoints_of(broker, request.endpoints)
            permissions = list(_permissions(data))
            if len(response.message_queues) + len(permissions) > _QUEUES_MAX:
                raise Refusal(Code.INTERNAL_SERVER_ERROR, f"the topic {topic} has too many queues")
            for queue_id, permission in enumerate(permissions):
                queue = response.message_queues.add(id=queue_id, permission=permission)
                self._fill(queue, request.topic, broker, endpoints)
                queue.accept_message_types.extend(types)
        return response

    async def query_assignment(self, call: Call, request: Any) -> Any:
        """Return the queues from which a push consumer receives.

        Members of a group do not share the queues: each may receive from all of them. A group that
        consumes in order gets them one by one, others as one queue for each broker.
        """
        topic, group = topic_name(request.topic), group_name(request.group)
        route = await self._route(topic)
        config = await self._backend.group(group)
        in_order = config is not None and config.consume_message_orderly
        response = QueryAssignmentResponse(status=OK)
        for broker, data in _brokers(route):
            if not data.perm & PERM_READ or not data.read_queue_nums:
                continue
            endpoints = self._endpoints_of(broker, request.endpoints)
            permission = _permission(data.perm)
            for queue_id in range(data.read_queue_nums) if in_order else (ALL_QUEUES,):
                queue = response.assignments.add().message_queue
                queue.id, queue.permission = queue_id, permission
                self._fill(queue, request.topic, broker, endpoints)
        if not response.assignments:
            raise Refusal(Code.FORBIDDEN, f"no queue of the topic {topic} is readable")
        return response

    def _fill(self, queue: Any, topic: Any, broker: BrokerData, endpoints: Any) -> None:
        queue.topic.CopyFrom(topic)
        queue.broker.name = broker.broker_name
        queue.broker.endpoints.CopyFrom(endpoints)

    async def _route(self, topic: str) -> TopicRoute:
        try:
            return await self._backend.route(topic)
        except RouteNotFound as error:
            raise Refusal(
                Code.TOPIC_NOT_FOUND, f"{error}; create it with mqadmin updateTopic"
            ) from None


def _brokers(route: TopicRoute) -> Iterator[tuple[BrokerData, QueueData]]:
    """Return the brokers of a route that have a master, with their queues."""
    brokers = {each.broker_name: each for each in route.broker_datas if each.master is not None}
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        if data.broker_name in brokers:
            yield brokers[data.broker_name], data


def _permission(perm: int) -> Permission:
    if perm & PERM_READ:
        return Permission.READ_WRITE if perm & PERM_WRITE else Permission.READ
    return Permission.WRITE if perm & PERM_WRITE else Permission.NONE


def _permissions(data: QueueData) -> Iterator[Permission]:
    """Return the permission of each queue: of those for reading or writing only first."""
    readable = data.read_queue_nums if data.perm & PERM_READ else 0
    writable = data.write_queue_nums if data.perm & PERM_WRITE else 0
    both = min(readable, writable)
    if not readable and not writable:
        none = max(1, data.read_queue_nums, data.write_queue_nums)
        yield from [Permission.NONE] * none
        return
    yield from [Permission.READ] * (readable - both)
    yield from [Permission.WRITE] * (writable - both)
    yield from [Permission.READ_WRITE] * both


def is_empty(endpoints: Any) -> bool:
    """Tell whether endpoints have no usable address."""
    return not any(each.host and 0 < each.port < 65_536 for each in endpoints.addresses)


def endpoints_for(asked: Any, config: ProxyConfig, *, host: str, port: int) -> Any:
    """Return the endpoints at which a client finds this proxy.

    They are those that the client has used: they reach the proxy, also through a NAT.

    Args:
        asked: The endpoints that the client has used; may be empty.
        config: The settings.
        host: The host of this proxy, for clients that name none.
        port: The port of this proxy.
    """
    if is_empty(asked):
        return endpoints_at(host, port)
    if config.keeps_client_port:
        return asked
    endpoints = Endpoints()
    endpoints.CopyFrom(asked)
    for address in endpoints.addresses:
        address.port = port
    return endpoints
