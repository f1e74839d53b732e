"""Pulls of known shapes: what those of one read share, and that the next read begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.pull.known_pulls import KnownPulls
from rocketpost.broker.pull.reader import PullLimits, QueueReader
from rocketpost.broker.pull.service import PullRules
from rocketpost.broker.pull.subscriptions import PullSubscriptions
from rocketpost.broker.stats import BrokerStats
from rocketpost.client.compression import decompress
from rocketpost.codec.command import encode_command
from rocketpost.kernel.pull_lane import PullLane
from rocketpost.model import sysflag

from ..consume_world import GROUP, TOPIC, World


class KnownPullsWorld(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.offsets = OffsetTable(clock=self.clock)
        self.stats = BrokerStats(clock=self.clock)
        self.access = self.store.integrity.reader
        self.reader = QueueReader(
            records=self.store, access=self.access, limits=PullLimits(memory_bytes=2**30)
        )
        membership = Membership(clock=self.clock)
        rules = PullRules(
            broker_readable=True, lite_pull=True, long_polling=True, short_polling_ms=1000
        )
        self.known = KnownPulls(
            records=self.store,
            find_queue=self.store.queues.get,
            access=self.access,
            reader=self.reader,
            topics=self.topics,
            groups=self.groups,
            membership=membership,
            subscriptions=PullSubscriptions(
                filters=Filters(table=FilterTable(clock=self.clock), unpack=decompress),
                membership=membership,
                groups=self.groups,
            ),
            offsets=self.offsets,
            stats=self.stats,
            rules=lambda: rules,
        )
        self.lane = PullLane()
        self.ask()  # a shape is learnt when it is seen for the second time
        self.known.end()

    def ask(self, offset: int = 0) -> bytes | None:
        """Return the answer to a pull of one message."""
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "1",
            "sysFlag": str(sysflag.PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "subscription": "*",
        }
        data = encode_command(11, opaque=1, fields=fields)
        shape = self.lane.split(data, 0, len(data))
        assert shape is not None
        return self.known.answer(shape, self.lane)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KnownPullsWorld]:
    world = KnownPullsWorld(tmp_path)
    for _ in range(3):
        world.send(0, "a")
    yield world
    world.close()


def test_the_pulls_of_one_read_share_the_time_and_the_part_of_the_log(
    world: KnownPullsWorld,
) -> None:
    with (
        patch.object(world.access, "fresh_from", wraps=world.access.fresh_from) as fresh_from,
        patch.object(world.access, "part_at", wraps=world.access.part_at) as part_at,
    ):
        for read in (1, 2):
            for offset in range(3):
                assert world.ask(offset)
            assert fresh_from.call_count == part_at.call_count == read
            world.known.end()


def test_pulls_are_counted_at_the_end_of_the_read(world: KnownPullsWorld) -> None:
    assert world.ask(0)
    assert world.ask(1)
    assert world.stats.found == 0
    world.known.end()
    world.known.end()
    assert world.stats.found == 2
    assert world.stats.got_today.now == 2


def test_records_that_need_a_check_by_now_are_left(world: KnownPullsWorld) -> None:
    assert world.ask()
    interval_ms = world.store.integrity.check.interval_ms
    world.clock.advance(3 * interval_ms)
    assert world.ask(), "the time of a read is that of its first pull"
    world.known.end()
    assert world.ask() is None
    world.known.end()
    queue = world.store.queues.get((TOPIC, 0))
    assert queue is not None
    position, size, _ = queue.entry(0) or (0, 0, 0)
    assert world.store.select_sound(TOPIC, 0, 0, [(0, position, size)])
    assert world.ask(), "it was checked"
    assert world.ask(1) is None, "only the first one was"


def test_records_that_may_be_on_disk_only_are_left(world: KnownPullsWorld) -> None:
    world.reader.limits = world.reader.limits._replace(memory_bytes=0)
    assert world.ask() is None
