"""Determines the messages that a pull wants: by its own filter or its group's subscription."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import Matcher
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.table import GroupTable
from rocketpost.codec.faults import (
    NoPermission,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
)
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model import sysflag
from rocketpost.model.group import TAG, GroupConfig, Subscription, parse_tags

_EXPRESSION_LENGTH_MAX: Final = 64 * 1024


class PullFilter(NamedTuple):
    """Messages that a pull wants: by tags code (none for all), or by a matcher."""

    tags: AbstractSet[int] = frozenset()
    matcher: Matcher | None = None


EVERYTHING: Final = PullFilter()


class PullSubscriptions:
    """Finds the filter of a pull. Owned by the event loop; waits for nothing."""

    def __init__(self, *, filters: Filters, membership: Membership, groups: GroupTable) -> None:
        self._filters = filters
        self._membership = membership
        self._groups = groups

    def find(self, request: PullMessage, group: GroupConfig) -> PullFilter:
        """Return the messages that a pull wants.

        Raises:
            SubscriptionNotExist: The pull relies on a subscription that its group does not have.
            SubscriptionNotLatest: The subscription known here is older than the pull's.
            SubscriptionParseFailed: The pull's own filter is wrong.
            NoPermission: The group may not consume in this way.
        """
        if not request.sys_flag & sysflag.PULL_SUBSCRIPTION:
            subscription = self._of_group(request, group)
            if not subscription.is_tag:
                matcher = self._filters.of_group(
                    request.topic, request.consumer_group, request.sub_version
                )
                return PullFilter(matcher=matcher)
        elif request.expression_type not in (None, "", TAG):
            matcher = self._filters.check(request.expression_type, request.subscription)
            return PullFilter(matcher=matcher)
        else:
            subscription = _parse(request)
        if not subscription.takes_all:
            return PullFilter(tags=subscription.code_set or frozenset())
        retries = self._filters.of_retries(request.topic)
        return EVERYTHING if retries is None else PullFilter(matcher=retries)

    def _of_group(self, request: PullMessage, group: GroupConfig) -> Subscription:
        name = request.consumer_group
        members = self._membership.consumer_group(name)
        if members is None:
            raise SubscriptionNotExist(
                f"no consumer of the group {name} is known here; send a heartbeat first"
            )
        if members.is_broadcasting and not group.consume_broadcast_enable:
            raise NoPermission(f"the group {name} must not consume by broadcasting")
        if not self._groups.may_read(name, request.topic):
            raise NoPermission(f"the group {name} is forbidden to read the topic {request.topic}")
        subscription = members.subscriptions.get(request.topic)
        if subscription is None:
            raise SubscriptionNotExist(f"the group {name} does not subscribe to {request.topic}")
        if subscription.sub_version < request.sub_version:
            raise SubscriptionNotLatest(
                f"the subscription of the group {name} to {request.topic} is older than the pull"
            )
        return subscription


def _parse(request: PullMessage) -> Subscription:
    if len(request.subscription or "") > _EXPRESSION_LENGTH_MAX:
        raise SubscriptionParseFailed(
            f"the expression has more than {_EXPRESSION_LENGTH_MAX} characters"
        )
    return parse_tags(request.topic, request.subscription, version=request.sub_version)
