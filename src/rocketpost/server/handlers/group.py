"""Requests about consumer groups: create, change, delete, list, describe."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.stats import BrokerStats
from rocketpost.codec.bodies.group import (
    GroupForbidden,
    GroupSubscription,
    decode_group_change,
    decode_group_changes,
    encode_group_table,
)
from rocketpost.codec.bodies.topic import TopicList
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import GroupNotExist, InvalidParameter
from rocketpost.codec.headers.group import (
    DeleteGroup,
    ForbidGroup,
    GroupPage,
    GroupPageResponse,
    GroupRequest,
    QuerySubscription,
)
from rocketpost.server.handlers.pages import PageRequest, page_of
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.routes.access import (
    DELETE,
    GET,
    LIST,
    UPDATE,
    of_every_group,
    of_group,
    of_topic,
)
from rocketpost.server.routes.body_access import CREATED_GROUP, CREATED_GROUPS
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.server.tables.broker_tables import Tables
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)


class GroupHandlers:
    """Serves requests about consumer groups.

    Args:
        broker_address: The address of this broker, for answers.
        save: Returns once the tables are on disk; no change is acknowledged before.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        membership: Membership,
        stats: BrokerStats,
        broker_address: str,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._groups = tables.groups
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._membership = membership
        self._stats = stats
        self._broker_address = broker_address
        self._save = save

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                NO_HEADER,
                CREATED_GROUP,
                self.update,
            ),
            waiting(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                NO_HEADER,
                CREATED_GROUPS,
                self.update_list,
            ),
            waiting(
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                DeleteGroup,
                of_group(DELETE, field="group_name"),
                self.delete,
            ),
            waiting(
                RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
                ForbidGroup,
                of_topic(UPDATE) + of_group(UPDATE),
                self.forbid,
            ),
            plain(
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                GroupPage,
                of_every_group(LIST),
                self.all_configs,
            ),
            plain(
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest, of_group(GET), self.config
            ),
            plain(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequest, of_group(GET), self.topics),
            plain(
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                QuerySubscription,
                of_topic(GET) + of_group(GET),
                self.subscription,
            ),
        ]

    async def update(self, connection: Connection, command: Command, header: None) -> Reply:
        """Create or change one group; fields missing in the request stay as they are."""
        self._groups.update(read_body(command, decode_group_change), by=connection.peer_text)
        await self._save()
        return Reply()

    async def update_list(self, connection: Connection, command: Command, header: None) -> Reply:
        """Create or change several groups, all or none."""
        wanted = read_body(command, decode_group_changes)
        names = [config.group_name for config in wanted]
        if len(set(names)) != len(names):
            raise InvalidParameter("a group is listed twice")
        self._groups.plan_all(wanted)
        for change in wanted:
            self._groups.update(change, by=connection.peer_text)
        await self._save()
        return Reply()

    async def delete(self, connection: Connection, command: Command, header: DeleteGroup) -> Reply:
        """Delete a group, with its offsets if requested; succeed also if there is none."""
        self._groups.delete(header.group_name, by=connection.peer_text)
        self._stats.forget_groups({header.group_name})
        if header.clean_offset:
            self._offsets.forget_group(header.group_name)
            logger.info("offsets deleted: group=%s by=%s", header.group_name, connection.peer_text)
        await self._save()
        return Reply()

    async def forbid(self, connection: Connection, command: Command, header: ForbidGroup) -> Reply:
        """Forbid or allow a group to read a topic; without a value, only return the state."""
        self._topics.require(header.topic)
        self._groups.require(header.group, by=connection.peer_text)
        if header.readable is not None:
            self._groups.forbid_reading(header.group, header.topic, forbidden=not header.readable)
            logger.info(
                "group %s: group=%s topic=%s by=%s",
                "allowed to read" if header.readable else "forbidden to read",
                header.group,
                header.topic,
                connection.peer_text,
            )
            await self._save()
        readable = self._groups.may_read(header.group, header.topic)
        return json_reply(GroupForbidden(group=header.group, readable=readable, topic=header.topic))

    def all_configs(self, connection: Connection, command: Command, header: GroupPage) -> Reply:
        """List every group, or a page of them, with configuration, in the form that a slave reads.

        A page lists the forbidden topics of its own groups.
        """
        body = self._groups.body()
        total = GroupPageResponse(total_group_num=len(body.subscription_group_table))
        asked = PageRequest(header.group_seq, header.max_group_num, header.data_version)
        page = page_of(body.subscription_group_table, body.data_version, asked)
        if page is not body.subscription_group_table:
            body.subscription_group_table = dict(page)
            body.forbidden_table = {
                name: row for name, row in body.forbidden_table.items() if name in page
            }
        return json_reply(encode_group_table(body), fields=to_fields(total))

    def config(self, connection: Connection, command: Command, header: GroupRequest) -> Reply:
        """Return one group's configuration."""
        group = header.group
        config = self._groups.find(group)  # a query must not create a group
        if config is None:
            raise GroupNotExist(f"the group {group!r} does not exist on this broker")
        return json_reply(config)

    def topics(self, connection: Connection, command: Command, header: GroupRequest) -> Reply:
        """List the topics in which a group has offsets."""
        names = self._offsets.topics_of(header.group)
        return json_reply(TopicList(topic_list=names, broker_addr=self._broker_address))

    def subscription(
        self, connection: Connection, command: Command, header: QuerySubscription
    ) -> Reply:
        """Return the subscription of a group's online members to a topic."""
        return json_reply(
            GroupSubscription(
                group=header.group,
                topic=header.topic,
                subscription_data=self._membership.subscription(header.group, header.topic),
            )
        )
