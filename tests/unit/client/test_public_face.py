from __future__ import annotations

import subprocess
import sys

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


def test_a_part_of_the_package_is_imported_without_the_rest() -> None:
    code = (
        "import sys, rocketpost.client.config; "
        "assert 'rocketpost.client.producer.producer' not in sys.modules; "
        "from rocketpost.client import Producer; "
        "assert Producer is sys.modules['rocketpost.client.producer.producer'].Producer; "
        "import rocketpost.client as client; assert 'PushConsumer' in dir(client); "
        "assert not hasattr(client, 'Nonsense')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_public_face_is_what_was_agreed() -> None:
    assert sorted(client.__all__) == PINNED
    assert all(hasattr(client, name) for name in PINNED)
