from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.cluster import ClusterInfo
from rocketpost.codec.bodies.damage import DamagedRange, DamageList
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.diagnosis.losses import (
    Loss,
    find_losses,
    find_losses_at,
    find_lost_message,
    list_topics_of_group,
)
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import BrokerData, MessageQueue, TopicRoute


class FakeAdmin:
    """Answers for the brokers of the topic T: their damage, by address. Apache's have none."""

    def __init__(
        self,
        brokers: list[BrokerData],
        damage: Mapping[str, list[DamagedRange]] | None = None,
        topics: Mapping[str, list[str]] | None = None,
    ) -> None:
        self._brokers = brokers
        self._damage = damage or {}
        self._topics = topics or {}
        self.cluster = self.brokers = self.groups = self

    async def route(self, topic: str) -> TopicRoute:
        if topic != "T":
            raise RouteNotFound(f"no route of {topic}")
        return TopicRoute(broker_datas=self._brokers)

    async def damage(self, address: str, topic: str | None = None) -> DamageList:
        assert topic == "T"
        if address not in self._damage:
            raise RequestCodeNotSupported("code 9001")
        return DamageList(ranges=self._damage[address])

    async def info(self) -> ClusterInfo:
        return ClusterInfo(broker_addr_table={each.broker_name: each for each in self._brokers})

    async def topics_of(self, address: str, group: str) -> list[str]:
        assert group == "G"
        return self._topics[address]

    def client(self) -> AdminClient:
        return cast(AdminClient, cast(Any, self))


def broker(name: str, **addresses: str) -> BrokerData:
    """Return a broker; ``m`` is the address of its master, ``s1`` that of its slave 1."""
    ids = {0 if key == "m" else int(key[1:]): address for key, address in addresses.items()}
    return BrokerData(broker_name=name, broker_addrs=ids, cluster="C")


def lost(queue_id: int, offset: int, begin: int = 0) -> DamagedRange:
    return DamagedRange(
        begin=begin, end=begin + 100, reason="zeros", topic="T", queue_id=queue_id,
        queue_offset=offset,
    )  # fmt: skip


UNKNOWN = DamagedRange(begin=5000, end=6000, reason="zeros")
A, B = broker("a", s1="s:1", m="a:1"), broker("b", s2="s:3", s1="s:2")


async def test_losses_of_all_brokers_are_listed_by_queue_and_offset() -> None:
    damage = {
        "a:1": [lost(1, 4), UNKNOWN, lost(0, 9), lost(0, 7)],
        "s:2": [lost(0, 2, begin=300), lost(0, 2, begin=100)],
    }
    found = await find_losses(FakeAdmin([B, A], damage).client(), "T")
    assert found == [
        Loss("a", UNKNOWN),
        Loss("a", lost(0, 7)),
        Loss("a", lost(0, 9)),
        Loss("a", lost(1, 4)),
        Loss("b", lost(0, 2, begin=100)),
        Loss("b", lost(0, 2, begin=300)),
    ]
    assert [loss.is_named for loss in found] == [False, True, True, True, True, True]


async def test_the_master_is_asked_or_else_the_first_slave() -> None:
    damage = {"a:1": [lost(0, 1)], "s:1": [lost(0, 2)], "s:2": [lost(0, 3)], "s:3": [lost(0, 4)]}
    admin = FakeAdmin([A, B], damage).client()
    assert await find_losses_at(admin, A, "T") == [Loss("a", lost(0, 1))]
    assert await find_losses_at(admin, B, "T") == [Loss("b", lost(0, 3))]


async def test_brokers_without_damage_or_without_a_list_have_no_losses() -> None:
    nowhere = BrokerData(broker_name="c", broker_addrs={}, cluster="C")
    admin = FakeAdmin([A, B, nowhere], {"a:1": []}).client()
    assert await find_losses(admin, "T") == []
    assert await find_losses(admin, "unknown") == []


async def test_a_lost_message_is_found_by_its_queue_and_offset() -> None:
    admin = FakeAdmin([A, B], {"a:1": [UNKNOWN, lost(0, 7)], "s:2": [lost(1, 7)]}).client()
    queue = MessageQueue("a", 0, "T")
    assert await find_lost_message(admin, queue, 7) == Loss("a", lost(0, 7))
    assert await find_lost_message(admin, queue, 8) is None
    assert await find_lost_message(admin, MessageQueue("b", 0, "T"), 7) is None
    assert await find_lost_message(admin, MessageQueue("b", 1, "T"), 7) == Loss("b", lost(1, 7))
    assert await find_lost_message(admin, MessageQueue("a", -1, "T"), -1) is None  # UNKNOWN


async def test_the_topics_of_a_group_are_those_of_all_brokers() -> None:
    topics = {"a:1": ["T", "%RETRY%G"], "s:2": ["T"], "c:1": ["U", "T"]}
    brokers = [A, B, broker("c", m="c:1")]
    admin = FakeAdmin(brokers, topics=topics).client()
    assert await list_topics_of_group(admin, "G") == ["%RETRY%G", "T", "U"]
