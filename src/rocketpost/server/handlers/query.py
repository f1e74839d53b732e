"""Queries of single messages, by position or by key, and of a queue's entries.

Records are sent as views of the log, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import WORK_MAX, Matcher
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.stats import QueueEntries, QueueEntry
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, QueryNotFound, ServerError
from rocketpost.codec.headers.admin import QueryQueue
from rocketpost.codec.headers.message import QueryMessage, QueryResponse, ViewMessage
from rocketpost.codec.lenient_json import encode
from rocketpost.codec.record import Record
from rocketpost.model.group import Subscription
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.handlers.replies import BODY_BYTES_MAX, json_reply
from rocketpost.server.routes.access import GET, SUB, of_group, of_message, of_topic
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.store.integrity.damage import DamageRegister
from rocketpost.transport.connection import Buffer, Connection

ENTRY_COUNT_MAX: Final = 10_000
_KEY_LENGTH_MAX: Final = 32_767
_WORK_MAX: Final = 4 * WORK_MAX


class Queue(Protocol):
    """The part of a consume queue that queries use."""

    @property
    def first(self) -> QueueOffset:
        """The oldest offset that can be read."""
        ...

    @property
    def end(self) -> QueueOffset:
        """One past the newest offset that can be read."""
        ...

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return position, size and tags code of a message."""
        ...


class Store(Protocol):
    """The part of the store that queries use."""

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue, if it was ever written."""
        ...

    @property
    def damage(self) -> DamageRegister:
        """The known damage."""
        ...

    def record_at(self, position: int) -> Record | None:
        """Return the record at ``position``."""
        ...

    def view(self, position: int, size: int) -> memoryview | None:
        """Return bytes of the log."""
        ...

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return the positions of messages with a key, newest first."""
        ...


class QueryLimits(NamedTuple):
    """Bounds on the messages in one answer."""

    by_key: int = 64
    unique: int = 32


class QueryHandlers:
    """Serves queries of messages.

    Args:
        index_state: Returns the time and position up to which the key index is built.
        limits: Returns the bounds in force.
    """

    def __init__(
        self,
        *,
        store: Store,
        topics: TopicTable,
        membership: Membership,
        filters: Filters,
        index_state: Callable[[], tuple[int, int]],
        limits: Callable[[], QueryLimits] = lambda: QueryLimits(),
    ) -> None:
        self._store = store
        self._topics = topics
        self._membership = membership
        self._filters = filters
        self._index_state = index_state
        self._limits = limits

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            plain(
                RequestCode.VIEW_MESSAGE_BY_ID,
                ViewMessage,
                of_message(GET, field="offset"),
                self.view,
            ),
            plain(RequestCode.QUERY_MESSAGE, QueryMessage, of_topic(SUB, GET), self.by_key),
            plain(
                RequestCode.QUERY_CONSUME_QUEUE,
                QueryQueue,
                of_topic(GET) + of_group(GET, field="consumer_group", optional=True),
                self.queue_entries,
            ),
        ]

    def view(self, connection: Connection, command: Command, header: ViewMessage) -> Reply:
        """Return the message at a position of the log."""
        position = header.offset
        body = self._record(position)[1] if position >= 0 else None
        if body is None:
            damage = self._store.damage.find_covering(position)
            if damage is not None:
                raise ServerError(f"the message at {position} is damaged: {damage.reason}")
            raise ServerError(f"there is no message at {position} in the commit log")
        return Reply(body=[body])

    def by_key(self, connection: Connection, command: Command, header: QueryMessage) -> Reply:
        """Return the messages with a key, newest first."""
        if not header.key or len(header.key) > _KEY_LENGTH_MAX:
            raise InvalidParameter("key must be a word")
        unique = (header.unique_key_query or "").lower() == "true"
        limits = self._limits()
        count = limits.unique if unique else min(max(header.max_num, 0), limits.by_key)
        positions = self._store.find(
            header.topic,
            header.key,
            count_max=count,
            begin_ms=max(header.begin_timestamp, 0),
            end_ms=header.end_timestamp,
        )
        body: list[Buffer] = []
        room = BODY_BYTES_MAX
        for position in positions:
            topic, view = self._record(position)
            # The index knows hashes only: a message of another topic may have the same hash.
            if view is None or topic != header.topic:
                continue
            room -= len(view)
            if room < 0:
                break
            body.append(view)
        if not body:
            raise QueryNotFound(f"no message of {header.topic} with the key {header.key!r}")
        store_ms, position_end = self._index_state()
        fields = to_fields(
            QueryResponse(
                index_last_update_timestamp=store_ms, index_last_update_phyoffset=position_end
            )
        )
        return Reply(body=body, fields=fields)

    def queue_entries(self, connection: Connection, command: Command, header: QueryQueue) -> Reply:
        """Return entries of a consume queue, and whether a group's filter accepts them."""
        self._topics.require(header.topic)
        queue = self._store.queue(header.topic, header.queue_id)
        if queue is None:
            raise ServerError(f"{header.topic} has no message in queue {header.queue_id}")
        if not 0 < header.count <= ENTRY_COUNT_MAX:
            raise InvalidParameter(f"count={header.count} must be 1 to {ENTRY_COUNT_MAX}")
        start = header.index if header.index >= 0 else queue.end + header.index
        start = max(start, queue.first)
        subscription = self._subscription(header.consumer_group or "", header.topic)
        matcher: Matcher | None = None
        if subscription is not None and not subscription.is_tag:
            matcher = self._filters.find_last(header.topic, header.consumer_group or "")
        entries: list[QueueEntry] = []
        spent = 0
        for offset in range(start, min(start + header.count, queue.end)):
            entry = queue.entry(offset)
            if entry is None:
                continue
            position, size, tags_code = entry
            evaluated = _lets_through(subscription, tags_code)
            if matcher is not None:
                record = self._store.view(position, size)
                evaluated, work = (False, 0) if record is None else matcher.matches(record)
                spent += work
            entries.append(
                QueueEntry(
                    physic_offset=position, physic_size=size, tags_code=tags_code, eval=evaluated
                )
            )
            if spent > _WORK_MAX:
                break  # the client asks again for the rest
        return json_reply(
            QueueEntries(
                filter_data=self._filter_data(header, subscription),
                judged=matcher is not None,
                max_queue_index=queue.end,
                min_queue_index=queue.first,
                queue_data=entries,
                subscription_data=subscription,
            )
        )

    def _subscription(self, group: str, topic: str) -> Subscription | None:
        """Return a group's subscription to a topic, or its last one by an expression."""
        found = self._membership.subscription(group, topic) if group else None
        if found is not None or self._membership.consumer_group(group) is not None:
            return found
        data = self._filters.data(topic, group)
        if data is None:
            return None
        return Subscription(
            topic=topic,
            sub_string=data.expression,
            expression_type=data.expression_type,
            sub_version=data.client_version,
        )

    def _filter_data(self, header: QueryQueue, subscription: Subscription | None) -> str | None:
        """Return a filter's data for Java's tool, which prints null for tags."""
        if not header.consumer_group:
            return None
        if subscription is None:
            return f"{header.consumer_group}@{header.topic} is not online!"
        data = self._filters.data(header.topic, header.consumer_group)
        return msgspec.json.format(encode(data), indent=4).decode()

    def _record(self, position: int) -> tuple[str, memoryview | None]:
        record = self._store.record_at(position)
        if record is None:
            return "", None
        return record.topic, self._store.view(position, record.size)


def _lets_through(subscription: Subscription | None, tags_code: int) -> bool:
    if subscription is None:
        return False  # as Apache's brokers answer without a filter
    if subscription.takes_all or not subscription.is_tag:
        return True
    return tags_code in (subscription.code_set or ())
