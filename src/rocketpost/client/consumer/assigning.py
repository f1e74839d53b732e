"""Queue assignment by brokers.

For each topic the broker says which queues are ours, and whether to pull or to pop them. If a
broker cannot (it is old, or does not know our strategy), the members assign the topic themselves
from then on.
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
    """Requests assignments for one group. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        strategy: The name of the strategy for brokers.
        pull: Applies the queues to pull.
        pop: Applies the queues to pop.
        pull_retries: Called with a topic and the retry topic of messages that were popped from it
            and not finished, or None while that is popped along with the topic; returns whether
            this is a change.
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
        """Let a broker assign the queues of a topic; return False if members must do so.

        Raises:
            RouteNotFound: No broker of the topic is known.
            Fault: The broker refuses for now.
            ClientError: The broker does not answer.
            RemoteProtocolError: The answer cannot be read.
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
            logger.warning("brokers do not assign queues: topic=%s reason=%s", topic, error)
            self._ours.add(topic)
            self._pop(topic, [])
            return False
        found = decode_assignments(answer.body).message_queue_assignments
        if found is None:
            return True  # it cannot say now; we keep our queues
        popped = [each.message_queue for each in found if each.mode == POP]
        pulled = [each.message_queue for each in found if each.mode != POP]
        self._pop(topic, popped)
        if not topic.startswith(RETRY_PREFIX):
            await self._follow_retries(topic, is_pulled=bool(pulled) and not popped)
        await self._pull(topic, sorted(pulled, key=lambda queue: queue.sort_key), False)
        return True

    async def _follow_retries(self, topic: str, *, is_pulled: bool) -> None:
        """Pull the retries of messages that were popped before the group switched to pulling."""
        retries = pop_retry_topic(self._group, topic)
        if is_pulled:
            try:
                await self._session.routes.route(retries)
            except RouteNotFound:
                is_pulled = False
        if self._pull_retries(topic, retries if is_pulled else None):
            await self._session.heartbeat_all()  # brokers refuse pulls without a subscription
