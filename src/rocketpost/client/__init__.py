"""The SDK: producers, consumers and administration, on asyncio.

Users may import the names in ``__all__``; other names may change at any time.
``rocketpost.client.blocking`` has the same clients for threads and scripts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketpost.client.config import (
        ClientConfig,
        Compression,
        LitePullConsumerConfig,
        MessageModel,
        ProducerConfig,
        PullConsumerConfig,
        PushConsumerConfig,
        StartFrom,
    )
    from rocketpost.client.consumer.allocation import (
        AllocationStrategy,
        Average,
        AverageByCircle,
        ByConfiguration,
        ConsistentHash,
        MachineRoom,
        MachineRoomNearby,
        RoomResolver,
    )
    from rocketpost.client.consumer.fetch import PullResult, PullStatus
    from rocketpost.client.consumer.lite_pull_consumer import LitePullConsumer
    from rocketpost.client.consumer.offset_calls import Boundary
    from rocketpost.client.consumer.pop_calls import PoppedMessage
    from rocketpost.client.consumer.progress import OffsetStore
    from rocketpost.client.consumer.pull_consumer import PullConsumer
    from rocketpost.client.consumer.push.consumer import PushConsumer
    from rocketpost.client.consumer.push.handlers import BatchHandler, Consumed, Handler
    from rocketpost.client.consumer.push.orderly import Rollback, Suspend
    from rocketpost.client.consumer.push.retry import Retry
    from rocketpost.client.consumer.rebalance import QueueListener
    from rocketpost.client.consumer.simple_consumer import SimpleConsumer
    from rocketpost.client.credentials import Credentials
    from rocketpost.client.message import Message, ReceivedMessage, SendResult, SendStatus
    from rocketpost.client.producer.producer import Producer
    from rocketpost.client.producer.queue_choice import QueueSelector
    from rocketpost.client.producer.transaction import (
        Transaction,
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from rocketpost.errors import (
        ClientError,
        ConfigError,
        ConnectionLost,
        Fault,
        FilterError,
        MessageRefused,
        NoNameServer,
        NoReply,
        NotConnected,
        RequestTimeout,
        RocketpostError,
        RouteNotFound,
    )
    from rocketpost.model.route import MessageQueue
    from rocketpost.transport.tls_contexts import ClientTls

__all__ = [
    "AllocationStrategy",
    "Average",
    "AverageByCircle",
    "BatchHandler",
    "Boundary",
    "ByConfiguration",
    "ClientConfig",
    "ClientError",
    "ClientTls",
    "Compression",
    "ConfigError",
    "ConnectionLost",
    "ConsistentHash",
    "Consumed",
    "Credentials",
    "Fault",
    "FilterError",
    "Handler",
    "LitePullConsumer",
    "LitePullConsumerConfig",
    "MachineRoom",
    "MachineRoomNearby",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageRefused",
    "NoNameServer",
    "NoReply",
    "NotConnected",
    "OffsetStore",
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerConfig",
    "QueueListener",
    "QueueSelector",
    "ReceivedMessage",
    "RequestTimeout",
    "Retry",
    "RocketpostError",
    "Rollback",
    "RoomResolver",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "StartFrom",
    "Suspend",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
]

# Imported on first use: tools and servers use a few modules of this package, and would otherwise
# load all of it at their start.
_HOMES: Final = {
    name: module
    for module, names in {
        "rocketpost.client.consumer.allocation": (
            "AllocationStrategy",
            "Average",
            "AverageByCircle",
            "ByConfiguration",
            "ConsistentHash",
            "MachineRoom",
            "MachineRoomNearby",
            "RoomResolver",
        ),
        "rocketpost.client.producer.queue_choice": ("QueueSelector",),
        "rocketpost.client.config": (
            "ClientConfig",
            "Compression",
            "LitePullConsumerConfig",
            "MessageModel",
            "ProducerConfig",
            "PullConsumerConfig",
            "PushConsumerConfig",
            "StartFrom",
        ),
        "rocketpost.client.credentials": ("Credentials",),
        "rocketpost.transport.tls_contexts": ("ClientTls",),
        "rocketpost.client.consumer.fetch": (
            "PullResult",
            "PullStatus",
        ),
        "rocketpost.client.consumer.push.handlers": (
            "BatchHandler",
            "Consumed",
            "Handler",
        ),
        "rocketpost.client.consumer.lite_pull_consumer": ("LitePullConsumer",),
        "rocketpost.client.message": (
            "Message",
            "ReceivedMessage",
            "SendResult",
            "SendStatus",
        ),
        "rocketpost.client.consumer.offset_calls": ("Boundary",),
        "rocketpost.client.consumer.push.orderly": (
            "Rollback",
            "Suspend",
        ),
        "rocketpost.client.consumer.pop_calls": ("PoppedMessage",),
        "rocketpost.client.producer.producer": ("Producer",),
        "rocketpost.client.consumer.progress": ("OffsetStore",),
        "rocketpost.client.consumer.pull_consumer": ("PullConsumer",),
        "rocketpost.client.consumer.push.consumer": ("PushConsumer",),
        "rocketpost.client.consumer.rebalance": ("QueueListener",),
        "rocketpost.client.consumer.push.retry": ("Retry",),
        "rocketpost.client.consumer.simple_consumer": ("SimpleConsumer",),
        "rocketpost.client.producer.transaction": (
            "Transaction",
            "TransactionProducer",
            "TransactionResult",
            "TransactionState",
        ),
        "rocketpost.errors": (
            "ClientError",
            "ConfigError",
            "ConnectionLost",
            "Fault",
            "FilterError",
            "MessageRefused",
            "NoNameServer",
            "NoReply",
            "NotConnected",
            "RequestTimeout",
            "RocketpostError",
            "RouteNotFound",
        ),
        "rocketpost.model.route": ("MessageQueue",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
