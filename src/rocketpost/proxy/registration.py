"""Clients of the proxy as brokers know them: members of groups, with subscriptions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from rocketpost.codec.bodies.client import CONSUME_TYPES, ConsumerData, Heartbeat, ProducerData
from rocketpost.codec.codes import LANGUAGES
from rocketpost.model.group import SQL92, Subscription, parse_tags
from rocketpost.proxy.backend import Identity
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.wire.enums import ClientType, Code, FilterType

_LANGUAGE_NAMES: Final = {"GOLANG": "GO", "DOT_NET": "DOTNET"}
PROTOCOL: Final = "gRPC"
VERSION: Final = 413
"""The version that brokers show for these clients: 5.0.0, the first with this protocol."""


def language_of(text: str) -> str:
    """Return the name that brokers have for a client's language."""
    name = _LANGUAGE_NAMES.get(text.upper(), text.upper())
    return name if name in LANGUAGES else "OTHER"


def subscription_of(topic: str, expression: Any, *, version: int = 0) -> Subscription:
    """Return the subscription to a topic that a filter expression means.

    Raises:
        Refusal: The expression is empty although its kind needs one.
    """
    text = expression.expression.strip()
    if expression.type == FilterType.SQL:
        if not text:
            raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return Subscription(
            topic=topic, expression_type=SQL92, sub_string=text, sub_version=version
        )
    return parse_tags(topic, text, version=version)


def heartbeat_of(identity: Identity, settings: Any | None, topics: Iterable[str]) -> Heartbeat:
    """Return the heartbeat that announces a client's groups.

    A producer's group is the topic to which it sends.
    """
    consumers: list[ConsumerData] = []
    version = time.time_ns() // 1_000_000  # brokers adopt a subscription that is newer
    if settings is not None and settings.HasField("subscription"):
        subscription = settings.subscription
        is_simple = settings.client_type == ClientType.SIMPLE_CONSUMER
        consumers.append(
            ConsumerData(
                group_name=subscription.group.name,
                consume_type=CONSUME_TYPES[0 if is_simple else 1],
                subscription_data_set=[
                    subscription_of(each.topic.name, each.expression, version=version)
                    for each in subscription.subscriptions
                ],
            )
        )
    return Heartbeat(
        client_id=identity.client_id,
        consumer_data_set=consumers,
        producer_data_set=[ProducerData(group_name=topic) for topic in topics],
        protocol=PROTOCOL,
        client_version=identity.version or UNSET,
    )
