"""Queues that brokers share out: asked for, and put into effect.

The broker says for each topic which queues are ours, and whether to pull or to pop them. A broker
that cannot (an old one, or one that does not know our strategy) leaves the topic to us for good.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from rocketpost.client.session import Session
from rocketpost.codec.bodies.assignment import POP, QueryAssignment, decode_assignments
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import InvalidParameter, RequestCodeNotSupported
from rocketpost.codec.headers.pop import pop_retry_topic
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RouteNotFound
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)


class BrokerAssignment:
    """Asks brokers for the queues of one group. Belongs to the event loop.

    Args:
        session: How to reach brokers.
        group: The consumer group.
        strategy: The name of the strategy that brokers are to use.
        pull: Puts queues into effect that are to be pulled.
        pop: Puts queues into effect that are to be popped.
        pull_retries: Told a topic and where messages come again that members popped from it and
            did not finish, None while they are popped with the topic; says if that is news.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        strategy: str,
        pull: Callable[[str, list[MessageQueue], bool], Awaitable[None]],
        pop: Callable[[str, Sequence[MessageQueue]], None],
        pull_retries: Callable[[str, str | None], bool],
    ) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy
        self._pull = pull
        self._pop = pop
        self._pull_retries = pull_retries
        self._ours: set[str] = set()

    async def share_out(self, topic: str) -> bool:
        """Have a broker share out a topic; return False if that is left to us.

        Raises:
            RouteNotFound: No broker of the topic is known.
            Fault: The broker refuses for now.
            ClientError: The broker does not answer.
            RemoteProtocolError: The answer makes no sense.
        """
        if topic in self._ours:
            return False
        await self._session.routes.subscribe(topic)
        address = self._session.routes.some_broker(topic)
        if address is None:
            raise RouteNotFound(f"no broker of the topic {topic} is known")
        query = QueryAssignment(
            client_id=self._session.client_id,
            consumer_group=self._group,
            strategy_name=self._strategy,
            topic=topic,
        )
        try:
            answer = await self._session.call(
                address, RequestCode.QUERY_ASSIGNMENT, body=encode(query)
            )
        except (RequestCodeNotSupported, InvalidParameter) as error:
            logger.warning("brokers do not share out: topic=%s reason=%s", topic, error)
            self._ours.add(topic)
            self._pop(topic, [])
            return False
        found = decode_assignments(answer.body).message_queue_assignments
        if found is None:
            return True  # it cannot say now; what we have stays ours
        popped = [each.message_queue for each in found if each.mode == POP]
        pulled = [each.message_queue for each in found if each.mode != POP]
        self._pop(topic, popped)
        if not topic.startswith(RETRY_PREFIX):
            await self._follow_retries(topic, is_pulled=bool(pulled) and not popped)
        await self._pull(topic, sorted(pulled, key=lambda queue: queue.sort_key), False)
        return True

    async def _follow_retries(self, topic: str, *, is_pulled: bool) -> None:
        """Pull what was popped before the group was told to pull, and comes again now."""
        retries = pop_retry_topic(self._group, topic)
        if is_pulled:
            try:
                await self._session.routes.route(retries)
            except RouteNotFound:
                is_pulled = False
        if self._pull_retries(topic, retries if is_pulled else None):
            await self._session.heartbeat_all()  # brokers refuse pulls of what nobody subscribes
