"""Requests about topics: create, change, delete, list, describe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from rocketpost.broker.attributes import parse_changes
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.query import ProgressQueries
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.steps import Steps
from rocketpost.broker.topic import TopicTable, TopicUpdate
from rocketpost.codec.bodies.group import GroupNames
from rocketpost.codec.bodies.topic import (
    TopicList,
    decode_topic_changes,
    encode_topic_state_steps,
    encode_topic_table,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import IllegalOperation, InvalidParameter
from rocketpost.codec.headers.topic import (
    CreateTopic,
    CreateTopics,
    TopicPage,
    TopicPageResponse,
    TopicRequest,
)
from rocketpost.model.shrinking import hidden_messages, is_hiding
from rocketpost.model.topic import TopicChange
from rocketpost.server.handlers.pages import PageRequest, page_of
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.routes.access import CREATE, DELETE, GET, LIST, of_every_topic, of_topic
from rocketpost.server.routes.body_access import CREATED_TOPICS
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, in_slices, plain, waiting
from rocketpost.server.writer.queue_deletion import QueueDeleter
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)


class TopicHandlers:
    """Serves requests about topics.

    Args:
        save: Returns once the tables are on disk; no change is acknowledged before.
        retry_topics: Returns the topics to delete together with a topic: its messages that were
            popped and not acknowledged.
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        offsets: OffsetTable,
        stats: BrokerStats,
        queries: ProgressQueries,
        store: QueueDeleter,
        save: Callable[[], Awaitable[None]],
        retry_topics: Callable[[str], Sequence[str]] = lambda topic: (),
    ) -> None:
        self._retry_topics = retry_topics
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._queries = queries
        self._store = store
        self._save = save
        self._finishing = asyncio.Lock()
        self._deleted_count = 0
        self._finished_count = 0

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic, of_topic(CREATE), self.update
            ),
            waiting(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                CreateTopics,
                CREATED_TOPICS,
                self.update_list,
            ),
            waiting(
                RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest, of_topic(DELETE), self.delete
            ),
            plain(
                RequestCode.GET_ALL_TOPIC_CONFIG, TopicPage, of_every_topic(LIST), self.all_configs
            ),
            plain(RequestCode.GET_TOPIC_CONFIG, TopicRequest, of_topic(GET), self.config),
            plain(
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
                NO_HEADER,
                of_every_topic(LIST),
                self.system_topics,
            ),
            in_slices(RequestCode.GET_TOPIC_STATS_INFO, TopicRequest, of_topic(GET), self.state),
            plain(
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest, of_topic(GET), self.readers
            ),
        ]

    async def update(self, connection: Connection, command: Command, header: CreateTopic) -> Reply:
        """Create or change one topic; fields missing in the request stay as they are."""
        wanted = TopicChange(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
            attributes=parse_changes(header.attributes),
        )
        return await self._update([wanted], force=header.force, by=connection.peer_text)

    async def update_list(
        self, connection: Connection, command: Command, header: CreateTopics
    ) -> Reply:
        """Create or change several topics, all or none."""
        wanted = read_body(command, decode_topic_changes)
        names = [change.topic_name for change in wanted]
        if len(set(names)) != len(names):
            raise InvalidParameter("a topic is listed twice")
        force = header.force
        return await self._update(wanted, force=force, by=connection.peer_text)

    async def _update(self, wanted: Sequence[TopicChange], *, force: bool, by: str) -> Reply:
        warnings = [self._judge(planned, force=force) for planned in self._topics.plan_all(wanted)]
        for change in wanted:
            self._topics.update(change, by=by)
        for topic, warning in zip(wanted, warnings, strict=True):
            if warning is not None:
                logger.warning("messages hidden: topic=%s by=%s %s", topic.topic_name, by, warning)
        await self._save()
        return Reply(remark="; ".join(filter(None, warnings)) or None)

    def _judge(self, planned: TopicUpdate, *, force: bool) -> str | None:
        """Return a warning about the messages that a change hides, or None.

        Raises:
            IllegalOperation: The change hides messages and is not forced.
        """
        before, after = planned
        gone = range(after.read_queue_nums, before.read_queue_nums if before else 0)
        behind = self._queries.behind(after.topic_name, gone)
        warning = hidden_messages(before, after, behind)
        if warning is not None and is_hiding(before, after, behind) and not force:
            raise IllegalOperation(
                f"the topic {after.topic_name} is unchanged: {warning}. "
                "To change it anyway, use rocketpost's mqadmin with --yes"
            )
        return warning

    async def delete(self, connection: Connection, command: Command, header: TopicRequest) -> Reply:
        """Delete a topic with its queues, offsets and retries; succeed also if there is none."""
        self._topics.check_name(header.topic)
        # Its own name first: from then on, nothing is stored in its retry topics.
        topics = header.topic, *self._retry_topics(header.topic)
        for topic in topics:
            deletion = await self._store.delete_queues(topic)
            self._deleted_count = number = self._deleted_count + 1
            self._topics.delete(topic, by=connection.peer_text)
            self._stats.forget_topic(topic)
        # Last: if one of them cannot be deleted, another attempt finds them by the offsets.
        for topic in topics:
            self._offsets.forget_topic(topic)
        async with self._finishing:
            # A later request may have finished this deletion too: it unlinks all deleted queues.
            if self._finished_count < number:
                covered = self._deleted_count
                await asyncio.to_thread(deletion.finish_blocking)
                self._finished_count = covered
        await self._save()
        return Reply()

    def all_configs(self, connection: Connection, command: Command, header: TopicPage) -> Reply:
        """List every topic, or a page of them, with configuration, in the form that a slave reads.

        The built-in topics are among them: RocketMQ's slave deletes its own ones otherwise.
        """
        body = self._topics.body()
        total = TopicPageResponse(total_topic_num=len(body.topic_config_table))
        asked = PageRequest(header.topic_seq, header.max_topic_num, header.data_version)
        body.topic_config_table = dict(page_of(body.topic_config_table, body.data_version, asked))
        return json_reply(encode_topic_table(body), fields=to_fields(total))

    def config(self, connection: Connection, command: Command, header: TopicRequest) -> Reply:
        """Return one topic's configuration."""
        return json_reply(self._topics.require(header.topic))

    def system_topics(self, connection: Connection, command: Command, header: None) -> Reply:
        """List the system topics."""
        return json_reply(TopicList(topic_list=sorted(self._topics.system_topics)))

    def state(self, connection: Connection, command: Command, header: TopicRequest) -> Steps[Reply]:
        """Return the first and last offsets of a topic's queues."""
        config = self._topics.require(header.topic)
        state = yield from self._queries.topic_state(config)
        return json_reply((yield from encode_topic_state_steps(state)))

    def readers(self, connection: Connection, command: Command, header: TopicRequest) -> Reply:
        """List the groups that read a topic."""
        return json_reply(GroupNames(self._queries.readers(header.topic)))
