"""Header fields of requests about consumer groups."""

from __future__ import annotations

import msgspec


class GroupRequest(msgspec.Struct, rename="camel", kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


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
