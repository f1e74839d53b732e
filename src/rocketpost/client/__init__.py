"""The SDK: producers, consumers and administration, on asyncio.

Everything here may be imported by users; what is not listed in ``__all__`` may change any day.
``rocketpost.client.blocking`` has the same for threads and scripts.
"""

from __future__ import annotations

from rocketpost.client.config import (
    ClientConfig,
    Compression,
    ProducerConfig,
    PullConsumerConfig,
)
from rocketpost.client.fetch import PullResult, PullStatus
from rocketpost.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rocketpost.client.offset_calls import Boundary
from rocketpost.client.producer import Producer, QueueSelector
from rocketpost.client.pull_consumer import PullConsumer
from rocketpost.errors import (
    ClientError,
    ConfigError,
    ConnectionLost,
    Fault,
    MessageRefused,
    NoNameServer,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.model.route import MessageQueue

__all__ = [
    "Boundary",
    "ClientConfig",
    "ClientError",
    "Compression",
    "ConfigError",
    "ConnectionLost",
    "Fault",
    "Message",
    "MessageQueue",
    "MessageRefused",
    "NoNameServer",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PullResult",
    "PullStatus",
    "QueueSelector",
    "ReceivedMessage",
    "RequestTimeout",
    "RocketpostError",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
]
