"""Messages that a slave does not return are requested from the master."""

from __future__ import annotations

import pytest

from rocketpost.client.consumer.fetch import PullStatus, RawPull, Replica
from rocketpost.codec.faults import TopicNotExist
from rocketpost.errors import ConnectionLost, RequestTimeout
from rocketpost.spark.source.replicas import pull_from_replica

MASTER = RawPull(PullStatus.FOUND, 20, 0, 30, b"master")
SLAVE = RawPull(PullStatus.FOUND, 20, 0, 25, b"slave")
BEHIND = RawPull(PullStatus.OFFSET_ILLEGAL, 8, 0, 8, b"")
AT_END = RawPull(PullStatus.NO_NEW_MSG, 10, 0, 10, b"")
UNMATCHED = RawPull(PullStatus.NO_MATCHED_MSG, 15, 0, 25, b"")


@pytest.mark.parametrize(
    ("read_from", "slave", "expected"),
    [
        ("master", SLAVE, MASTER),
        ("slave", SLAVE, SLAVE),
        ("any", SLAVE, SLAVE),
        ("slave", UNMATCHED, UNMATCHED),
        ("slave", BEHIND, MASTER),
        ("slave", AT_END, MASTER),
        ("any", BEHIND, MASTER),
        ("slave", RequestTimeout("slow"), MASTER),
        ("slave", ConnectionLost("away"), MASTER),
        ("slave", TopicNotExist("not here yet"), MASTER),
    ],
)
async def test_the_replica_that_is_asked(
    read_from: str, slave: RawPull | Exception, expected: RawPull
) -> None:
    async def pull(replica: Replica) -> RawPull:
        if replica is Replica.MASTER:
            return MASTER
        if isinstance(slave, Exception):
            raise slave
        return slave

    assert await pull_from_replica(read_from, 10, pull) == expected


async def test_messages_that_the_master_lacks_are_reported() -> None:
    async def pull(replica: Replica) -> RawPull:
        raise ConnectionLost(replica.value)

    with pytest.raises(ConnectionLost, match="master"):
        await pull_from_replica("slave", 10, pull)
