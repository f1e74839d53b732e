"""The body of a heartbeat: which groups live behind a connection."""

from __future__ import annotations

import msgspec

from rocketpost.model.group import Subscription


class ConsumerData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One consumer group of a client."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str
    message_model: str = "CLUSTERING"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel", frozen=True):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Everything that a client tells a broker of itself."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False
