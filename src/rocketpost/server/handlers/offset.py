"""Requests about offsets: of queues, of consumer groups, and the lag between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import NO_OFFSET
from rocketpost.broker.own_state import check_offset
from rocketpost.broker.query import ProgressQueries
from rocketpost.broker.steps import QUEUES_AT_A_STEP, Steps
from rocketpost.codec.bodies.offset import (
    BrokerConsumeState,
    TimeSpans,
    encode_broker_consume_state,
    encode_consume_state,
    encode_correction,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter, QueryNotFound
from rocketpost.codec.headers.offset import (
    BrokerConsumeStats,
    CloneOffset,
    ConsumeStats,
    ConsumeTimeSpan,
    CorrectionOffset,
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    TimestampResponse,
    UpdateOffset,
)
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import group_problem, is_own_offset
from rocketpost.server.handlers.replies import fields_reply, json_reply
from rocketpost.server.routes.access import (
    GET,
    SUB,
    UPDATE,
    of_cluster,
    of_consumer,
    of_group,
    of_topic,
)
from rocketpost.server.routes.body_access import LEFT_OUT_GROUPS, LISTED_TOPICS
from rocketpost.server.routes.route import (
    NO_HEADER,
    Reply,
    Route,
    either,
    in_slices,
    plain,
    waiting,
)
from rocketpost.server.tables.broker_tables import Tables
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_LONG_MAX = 2**63 - 1


class Queue(Protocol):
    """The part of a consume queue that offset requests use."""

    @property
    def first(self) -> QueueOffset:
        """The oldest offset that can be read."""
        ...

    @property
    def end(self) -> QueueOffset:
        """One past the newest offset that can be read."""
        ...

    @property
    def next_offset(self) -> QueueOffset:
        """The offset that the next message gets."""
        ...

    def store_time(self, offset: int) -> int:
        """Return the store time of the message at ``offset``, -1 if there is none."""
        ...

    def offset_at(self, timestamp_ms: int, *, upper: bool) -> QueueOffset:
        """Return the offset at a time."""
        ...

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return position, size and tags code of a message."""
        ...


class Store(Protocol):
    """The part of the store that offset requests use."""

    @property
    def end_position(self) -> Position:
        """One past the newest byte of the log."""
        ...

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue, if it was ever written."""
        ...


class OffsetHandlers:
    """Serves requests about the offsets of consumer groups.

    Args:
        save: Returns once the offsets are on disk; administrators are answered then.
        memory_bytes: The size of the log's end that counts as in memory.
        on_back: Called with the topic and queue in which a group got an earlier offset, or its
            first one: there may be messages for its waiting consumers.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        membership: Membership,
        store: Store,
        save: Callable[[], Awaitable[None]],
        memory_bytes: int,
        on_back: Callable[[str, int], None] = lambda topic, queue_id: None,
    ) -> None:
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._membership = membership
        self._store = store
        self._save = save
        self._memory_bytes = memory_bytes
        self._on_back = on_back

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about the offsets of groups."""
        return [
            plain(
                RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset, of_consumer(SUB, GET), self.query
            ),
            either(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateOffset,
                of_consumer(SUB, UPDATE),
                self.update,
                self.update_saved,
            ),
            plain(
                RequestCode.GET_ALL_CONSUMER_OFFSET, NO_HEADER, of_cluster(GET), self.all_offsets
            ),
            waiting(
                RequestCode.CLONE_GROUP_OFFSET,
                CloneOffset,
                of_topic(UPDATE)
                + of_group(UPDATE, field="dest_group")
                + of_group(GET, field="src_group"),
                self.clone,
            ),
            plain(
                RequestCode.QUERY_CORRECTION_OFFSET,
                CorrectionOffset,
                of_topic(GET) + of_group(GET, field="compare_group") + LEFT_OUT_GROUPS,
                self.correction,
            ),
        ]

    def query(self, connection: Connection, command: Command, header: QueryOffset) -> Reply:
        """Return the offset from which a group continues in a queue.

        A group without an offset starts at 0 if the queue is young or never had a message,
        even if its client would choose another start. Otherwise messages sent while the first
        consumer started would never be consumed (ADR 0053).
        """
        offset = self._offsets.query(header.topic, header.consumer_group, header.queue_id)
        if offset == NO_OFFSET:
            if not header.set_zero_if_not_found or not self._starts_at_zero(header):
                raise QueryNotFound(
                    f"the group {header.consumer_group} has no offset in queue "
                    f"{header.queue_id} of the topic {header.topic}"
                )
            offset = 0
        return fields_reply(OffsetResponse(offset=offset))

    def update(
        self, connection: Connection, command: Command, header: UpdateOffset
    ) -> Reply | None:
        """Set a group's offset in a queue; :meth:`update_saved` answers administrators.

        A member of the group commits the offset that it consumed, and does so often. It is answered
        at once, and the offset is saved with the next round. Other clients set offsets on purpose.
        """
        config = self._topics.require(header.topic)
        if self._groups.find(header.consumer_group) is None:
            self._groups.require(header.consumer_group, by=connection.peer_text)
        check_offset(header.topic, header.consumer_group)
        # A topic may have got fewer queues while a group was still reading the last ones.
        count = max(config.read_queue_nums, config.write_queue_nums)
        queue = self._store.queue(header.topic, header.queue_id)
        if header.queue_id < 0 or (header.queue_id >= count and queue is None):
            raise InvalidParameter(f"queueId={header.queue_id} is not a queue of {header.topic}")
        self._check_range(connection, header, end=0 if queue is None else queue.end)
        before = self._offsets.query(header.topic, header.consumer_group, header.queue_id)
        if header.only_forward and before >= header.commit_offset:
            return Reply(remark="the group is further by now, the commit is ignored")
        taken = self._offsets.commit(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset
        )
        if not taken:
            return Reply(remark="offset has been reset, the commit is ignored")
        if header.commit_offset < before or before == NO_OFFSET:
            self._on_back(header.topic, header.queue_id)
        members = self._membership.consumer_group(header.consumer_group)
        is_member = members is not None and connection in members.members
        return Reply() if is_member or command.is_oneway else None

    async def update_saved(
        self, connection: Connection, command: Command, header: UpdateOffset
    ) -> Reply:
        """Answer once the new offset is on disk."""
        await self._save()
        return Reply()

    def all_offsets(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return every group's offsets, in the form that a slave reads."""
        return json_reply(self._offsets.body())

    async def clone(self, connection: Connection, command: Command, header: CloneOffset) -> Reply:
        """Copy the offsets of one group to another; answer once they are on disk."""
        if problem := group_problem(header.src_group):
            raise InvalidParameter(problem)
        self._groups.require(header.dest_group, by=connection.peer_text)
        members = self._membership.consumer_group(header.src_group)
        if header.topic:
            check_offset(header.topic, header.dest_group)
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            known = self._topics.find(topic) is not None
            wanted = header.offline or members is None or topic in members.subscriptions
            if known and wanted and not is_own_offset(topic, header.dest_group):
                before = self._offsets.row(topic, header.dest_group)
                self._offsets.clone(header.src_group, header.dest_group, topic)
                await self._tell_back(topic, before, self._offsets.row(topic, header.dest_group))
                logger.info(
                    "offsets cloned: topic=%s group=%s from=%s peer=%s",
                    topic, header.dest_group, header.src_group, connection.peer_text,
                )  # fmt: skip
        await self._save()
        return Reply()

    async def _tell_back(
        self, topic: str, before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        for number, queue_id in enumerate(before.keys() | after.keys(), 1):
            if number % QUEUES_AT_A_STEP == 0:
                await asyncio.sleep(0)  # serves other requests in between
            old = before.get(queue_id, NO_OFFSET)
            if old == NO_OFFSET or after.get(queue_id, NO_OFFSET) < old:
                self._on_back(topic, queue_id)

    def correction(
        self, connection: Connection, command: Command, header: CorrectionOffset
    ) -> Reply:
        """Return the lowest offset of each queue among all groups but the excluded ones."""
        left_out = {name.strip() for name in header.filter_groups.split(",")}
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.row(header.topic, group).items():
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        compared = self._offsets.row(header.topic, header.compare_group)
        for queue_id, offset in compared.items():
            if lowest.get(queue_id, NO_OFFSET) > offset:
                lowest[queue_id] = _LONG_MAX
        return json_reply(encode_correction(lowest))

    def _check_range(self, connection: Connection, header: UpdateOffset, *, end: int) -> None:
        """Check that an offset is inside its queue.

        With an offset after the end the group would skip messages that are yet to be sent. A
        consumer can have one for a moment: after a crash in which the broker lost unflushed
        messages, until its next pull. Refusing its commits does it no harm.
        """
        offset = header.commit_offset
        if 0 <= offset <= end:
            return
        logger.warning(
            "commit refused: peer=%s topic=%s queue=%s group=%s offset=%s end=%s",
            connection.peer_text, header.topic, header.queue_id, header.consumer_group, offset, end,
        )  # fmt: skip
        raise InvalidParameter(
            f"commitOffset={offset} is outside queue {header.queue_id} of {header.topic}, "
            f"which ends at {end}"
        )

    def _starts_at_zero(self, header: QueryOffset) -> bool:
        """Return whether a new group starts at 0, regardless of its client's preference.

        In a queue that never had a message, every preference means 0. If the client had to choose,
        it would ask for the end with a second request, and skip messages stored in between.
        """
        queue = self._store.queue(header.topic, header.queue_id)
        if queue is None:
            config = self._topics.find(header.topic)
            return config is not None and 0 <= header.queue_id < config.read_queue_nums
        if queue.end == 0:
            return True
        entry = queue.entry(0) if queue.first == 0 else None
        return entry is not None and self._store.end_position - entry[0] <= self._memory_bytes


class QueueOffsetHandlers:
    """Serves requests about the offsets and times of a queue's messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about the offsets of queues."""
        return [
            plain(RequestCode.GET_MAX_OFFSET, QueueRequest, of_topic(SUB, GET), self.end),
            plain(RequestCode.GET_MIN_OFFSET, QueueRequest, of_topic(SUB, GET), self.first),
            plain(
                RequestCode.GET_EARLIEST_MSG_STORETIME,
                QueueRequest,
                of_topic(SUB, GET),
                self.earliest,
            ),
            plain(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                SearchOffset,
                of_topic(SUB, GET),
                self.search,
            ),
        ]

    def end(self, connection: Connection, command: Command, header: QueueRequest) -> Reply:
        """Return the offset after the newest message of a queue."""
        queue = self._store.queue(header.topic, header.queue_id)
        offset = 0 if queue is None else queue.end if header.committed else queue.next_offset
        return fields_reply(OffsetResponse(offset=offset))

    def first(self, connection: Connection, command: Command, header: QueueRequest) -> Reply:
        """Return the offset of the oldest message of a queue."""
        queue = self._store.queue(header.topic, header.queue_id)
        return fields_reply(OffsetResponse(offset=0 if queue is None else queue.first))

    def earliest(self, connection: Connection, command: Command, header: QueueRequest) -> Reply:
        """Return the store time of the oldest message of a queue."""
        queue = self._store.queue(header.topic, header.queue_id)
        timestamp = -1 if queue is None else queue.store_time(queue.first)
        return fields_reply(TimestampResponse(timestamp=timestamp))

    def search(self, connection: Connection, command: Command, header: SearchOffset) -> Reply:
        """Return the offset of a queue at a time."""
        queue = self._store.queue(header.topic, header.queue_id)
        offset = 0 if queue is None else queue.offset_at(header.timestamp, upper=header.upper)
        return fields_reply(OffsetResponse(offset=offset))


class ProgressHandlers:
    """Serves requests about the progress of consumer groups, and their lag.

    Args:
        broker_address: The address of this broker, for answers.
    """

    def __init__(self, *, tables: Tables, queries: ProgressQueries, broker_address: str) -> None:
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._queries = queries
        self._broker_address = broker_address

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about progress."""
        return [
            in_slices(
                RequestCode.GET_CONSUME_STATS,
                ConsumeStats,
                of_group(GET, field="consumer_group") + LISTED_TOPICS,
                self.progress,
            ),
            in_slices(
                RequestCode.GET_BROKER_CONSUME_STATS,
                BrokerConsumeStats,
                of_cluster(GET),
                self.broker_progress,
            ),
            plain(
                RequestCode.QUERY_CONSUME_TIME_SPAN,
                ConsumeTimeSpan,
                of_topic(GET) + of_group(GET),
                self.time_spans,
            ),
        ]

    def progress(
        self, connection: Connection, command: Command, header: ConsumeStats
    ) -> Steps[Reply]:
        """Return the progress of a group."""
        state = yield from self._queries.consume_state(header.consumer_group, header.topics)
        return json_reply(encode_consume_state(state))

    def broker_progress(
        self, connection: Connection, command: Command, header: BrokerConsumeStats
    ) -> Steps[Reply]:
        """Return the progress of every group, in all topics or only in ordered ones."""
        only_ordered = header.is_order
        groups = []
        diff = in_flight = 0
        for group in list(self._offsets.groups):
            states = []
            yield
            for topic in self._offsets.topics_of(group):
                config = self._topics.find(topic)
                if config is None or (only_ordered and not config.order):
                    continue
                state = yield from self._queries.consume_state(group, [topic])
                if state.queues:
                    states.append(state)
                for queue in state.queues.values():
                    diff += max(0, queue.broker_offset - queue.consumer_offset)
                    in_flight += queue.pull_offset - queue.consumer_offset
            groups.append((group, states))
        body = BrokerConsumeState(
            broker_addr=self._broker_address,
            groups=groups,
            total_diff=diff,
            total_inflight_diff=in_flight,
        )
        return json_reply(encode_broker_consume_state(body))

    def time_spans(
        self, connection: Connection, command: Command, header: ConsumeTimeSpan
    ) -> Reply:
        """Return the time spans of the messages that a group has still to consume."""
        config = self._topics.require(header.topic)
        return json_reply(TimeSpans(self._queries.time_spans(config, header.group)))
