from __future__ import annotations

from rocketpost import client

PINNED = [
    "AllocationStrategy",
    "Average",
    "AverageByCircle",
    "BatchHandler",
    "Boundary",
    "ByConfiguration",
    "ClientConfig",
    "ClientError",
    "Compression",
    "ConfigError",
    "ConnectionLost",
    "ConsistentHash",
    "Fault",
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
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerConfig",
    "QueueSelector",
    "ReceivedMessage",
    "RequestTimeout",
    "Retry",
    "RocketpostError",
    "RoomResolver",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "StartFrom",
    "Suspend",
]


def test_the_public_face_is_what_was_agreed() -> None:
    assert sorted(client.__all__) == PINNED
    assert all(hasattr(client, name) for name in PINNED)
