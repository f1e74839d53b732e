"""Assignment as a feature of a broker: modes are saved, own queues are known."""

from __future__ import annotations

import asyncio

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.assignment import RequestMode
from rocketpost.model.topic import TopicConfig
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.tables.persistence import Owner, Persistence, Saved
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.waiting import until

from ..contexts import broker_context, open_now, some_tables


class Disk:
    def __init__(self) -> None:
        self.saved: list[bytes] = []

    def save_blocking(self, data: bytes) -> None:
        self.saved.append(data)


class World:
    def __init__(self) -> None:
        clock = FakeClock()
        self.topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
        self.modes = RequestModes()
        self.disk = Disk()
        self.persistence = Persistence([Saved(self.modes, self.disk, owner=Owner.REQUEST_MODES)])
        self.feature = AssignmentFeature(
            broker_context(
                tables=some_tables(topics=self.topics, modes=self.modes),
                persistence=self.persistence,
                membership=Membership(clock=clock),
            )
        )
        open_now(self.feature)


async def test_a_mode_is_saved_soon_and_at_the_end() -> None:
    world = World()
    running = asyncio.ensure_future(world.persistence.run())
    await asyncio.sleep(0)
    world.modes.set(RequestMode(topic="T", consumer_group="g", mode="POP"))
    await until(lambda: world.disk.saved)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.persistence.close()
    again = RequestModes()
    again.load(world.disk.saved[-1])
    assert again.find("T", "g").mode == "POP"


async def test_without_name_servers_the_own_queues_are_shared_out() -> None:
    world = World()
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    world.topics.update(TopicConfig(topic_name="Mute", perm=2))
    queues = await world.feature._routes.queues("T")
    assert [queue.queue_id for queue in queues or ()] == [0, 1]
    assert await world.feature._routes.queues("Mute") == []
    assert await world.feature._routes.queues("Unknown") is None
    await world.feature.save()
