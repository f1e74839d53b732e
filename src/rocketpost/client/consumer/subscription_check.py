"""A check that all members of a group have the same subscriptions.

A broker keeps one set of subscriptions per group, that of the last heartbeat. Members that differ
keep overwriting each other's, and each loses messages that the other does not want. That is the
most common mistake with RocketMQ and otherwise goes unnoticed, so we log an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import ConsumerConnections, ConsumerData
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.client import ConsumerGroupRequest
from rocketpost.errors import RocketpostError
from rocketpost.model.group import SUBSCRIBE_ALL, TAG, Subscription
from rocketpost.model.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

_NOT_ONLINE = frozenset({ResponseCode.CONSUMER_NOT_ONLINE})


class SubscriptionCheck:
    """Compares a broker's subscriptions of the group with our own. Belongs to the event loop."""

    def __init__(
        self, session: Session, group: str, *, describe: Callable[[], ConsumerData]
    ) -> None:
        self._session = session
        self._group = group
        self._describe = describe
        self._reported: set[str] = set()

    async def check(self) -> None:
        """Ask a broker, and log an error for every new difference."""
        ours = self._describe()
        address = next(
            (
                address
                for each in ours.subscription_data_set
                if (address := self._session.routes.some_broker(each.topic)) is not None
            ),
            None,
        )
        if address is None:
            return
        try:
            response = await self._session.call(
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                ConsumerGroupRequest(consumer_group=self._group),
                accept=_NOT_ONLINE,
            )
            if response.code != ResponseCode.SUCCESS:
                return
            theirs = decode_body(response.body, ConsumerConnections)
        except RocketpostError as error:
            logger.debug("members not compared: group=%s reason=%s", self._group, error)
            return
        if self._describe() == ours:
            self._report(differences(ours, theirs), theirs)

    def _report(self, found: list[str], theirs: ConsumerConnections) -> None:
        for difference in found:
            if difference not in self._reported:
                self._reported.add(difference)
                logger.error(
                    "members of a group differ, messages will be missed: "
                    "group=%s difference=%s members=%s",
                    self._group,
                    difference,
                    sorted({each.client_id for each in theirs.connection_set}),
                )


def differences(ours: ConsumerData, theirs: ConsumerConnections) -> list[str]:
    """Return the differences between the members of a group, one sentence each."""
    found = []
    if theirs.message_model and theirs.message_model != ours.message_model:
        found.append(
            f"this member is {ours.message_model}, another member is {theirs.message_model}"
        )
    mine = {each.topic: each for each in ours.subscription_data_set}
    for topic in sorted(mine.keys() | theirs.subscription_table.keys()):
        if topic.startswith(RETRY_PREFIX):
            continue  # users do not subscribe to those; they depend on the group's request mode
        here, there = _text(mine.get(topic)), _text(theirs.subscription_table.get(topic))
        if here != there:
            found.append(f"this member subscribes to {here} of {topic}, another member to {there}")
    return found


def _text(subscription: Subscription | None) -> str:
    if subscription is None:
        return "nothing"
    if not subscription.is_tag:
        return f"{subscription.expression_type} {subscription.sub_string}"
    words = {part.strip() for part in subscription.sub_string.split("||")} - {""}
    return f"{TAG} {' || '.join(sorted(words)) or SUBSCRIBE_ALL}"
