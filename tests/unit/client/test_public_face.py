from __future__ import annotations

from rocketpost import client

PINNED = [
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


def test_the_public_face_is_what_was_agreed() -> None:
    assert sorted(client.__all__) == PINNED
    assert all(hasattr(client, name) for name in PINNED)
