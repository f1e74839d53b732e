"""Header fields of requests about consumer groups."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32


class GroupRequest(msgspec.Struct, rename="camel", kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class GroupPage(msgspec.Struct, rename="camel", kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups, or a page of them if any field is given.

    ``data_version`` is the version of the earlier pages, as JSON; a page of another version begins
    with the first group.
    """

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GroupPageResponse(msgspec.Struct, rename="camel", kw_only=True):
    """The number of groups on all pages."""

    total_group_num: int


class DeleteGroup(msgspec.Struct, rename="camel", kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


class ForbidGroup(msgspec.Struct, rename="camel", kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353); without ``readable`` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class QuerySubscription(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str = ""
