"""The result of a pull as a value, an answer or a hold, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.pull.reader import PullLimits, QueueReader
from rocketpost.broker.pull.service import PullAnswer, PullHold, PullRules, PullService
from rocketpost.broker.pull.subscriptions import PullSubscriptions
from rocketpost.broker.stats import BrokerStats
from rocketpost.client.compression import decompress
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import (
    InvalidParameter,
    NoPermission,
    SubscriptionNotExist,
    TopicNotExist,
)
from rocketpost.codec.headers.message import PullMessage
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import sysflag

from ..consume_world import GROUP, TOPIC, World

HOLD = sysflag.PULL_SUSPEND | sysflag.PULL_SUBSCRIPTION


class Somebody:
    """A caller that is no connection."""

    peer_text = "somebody"


class PullWorld(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.rules = PullRules(
            broker_readable=True, lite_pull=True, long_polling=True, short_polling_ms=1000
        )
        self.offsets = OffsetTable(clock=self.clock)
        self.stats = BrokerStats(clock=self.clock)
        filters = Filters(table=FilterTable(clock=self.clock), unpack=decompress)
        self.service = PullService(
            reader=QueueReader(
                records=self.store,
                access=self.store.integrity.reader,
                limits=PullLimits(memory_bytes=2**30),
            ),
            topics=self.topics,
            groups=self.groups,
            subscriptions=PullSubscriptions(
                filters=filters, membership=Membership(clock=self.clock), groups=self.groups
            ),
            offsets=self.offsets,
            stats=self.stats,
            rules=lambda: self.rules,
        )

    def ask(
        self, offset: int = 0, *, is_lite: bool = False, **more: object
    ) -> PullAnswer | PullHold:
        fields = {
            "consumer_group": GROUP,
            "topic": TOPIC,
            "queue_id": 0,
            "queue_offset": offset,
            "sys_flag": HOLD,
            "suspend_timeout_millis": 5000,
            **more,
        }
        request = PullMessage(**fields)  # type: ignore[arg-type]
        return self.service.pull(request, Somebody(), is_lite=is_lite)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PullWorld]:
    world = PullWorld(tmp_path)
    yield world
    world.close()


def test_a_pull_that_finds_nothing_is_held_and_answered_later(world: PullWorld) -> None:
    hold = world.ask(subscription="a || b")
    assert isinstance(hold, PullHold)
    assert hold.queue == (TOPIC, 0)
    assert hold.seconds == 5
    assert hold.tags == {string_hash("a"), string_hash("b")}
    assert hold.weight == 2
    world.send(0, "x")
    world.send(0, "b")
    answer = world.service.resume(hold)
    assert answer.pulled.code == ResponseCode.SUCCESS
    assert (answer.pulled.message_count, answer.pulled.next_offset) == (1, 2)


def test_a_pull_that_finds_something_is_answered_and_counted(world: PullWorld) -> None:
    world.send(0, "a")
    answer = world.ask()
    assert isinstance(answer, PullAnswer)
    assert answer.pulled.message_count == 1
    assert answer.topic.topic_name == TOPIC
    assert answer.group.group_name == GROUP
    assert world.offsets.pulled_offset(TOPIC, GROUP, 0) == 1


@pytest.mark.parametrize(
    "more", [{"sys_flag": sysflag.PULL_SUBSCRIPTION}, {"suspend_timeout_millis": 0}]
)
def test_a_pull_that_may_not_wait_is_answered(world: PullWorld, more: dict[str, object]) -> None:
    answer = world.ask(**more)
    assert isinstance(answer, PullAnswer)
    assert answer.pulled.code == ResponseCode.PULL_NOT_FOUND


def test_holds_are_short_when_long_polling_is_off_and_never_endless(world: PullWorld) -> None:
    world.rules = world.rules._replace(long_polling=False)
    hold = world.ask()
    assert isinstance(hold, PullHold)
    assert hold.seconds == 1
    world.rules = world.rules._replace(long_polling=True)
    hold = world.ask(suspend_timeout_millis=10**9)
    assert isinstance(hold, PullHold)
    assert hold.seconds == 120


def test_a_reset_answers_a_held_pull_with_its_new_offset(world: PullWorld) -> None:
    hold = world.ask()
    assert isinstance(hold, PullHold)
    world.offsets.reset(TOPIC, GROUP, 0, 7)
    answer = world.service.resume(hold)
    assert answer.pulled.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.pulled.next_offset == 7


def test_a_pull_commits_an_offset_that_exists(
    world: PullWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(0, "a")
    world.ask(sys_flag=HOLD | sysflag.PULL_COMMIT_OFFSET, commit_offset=1)
    assert world.offsets.query(TOPIC, GROUP, 0) == 1
    with caplog.at_level("WARNING"):
        world.ask(sys_flag=HOLD | sysflag.PULL_COMMIT_OFFSET, commit_offset=9)
    assert world.offsets.query(TOPIC, GROUP, 0) == 1
    assert "peer=somebody" in caplog.text


def test_pulls_that_are_refused(world: PullWorld) -> None:
    with pytest.raises(TopicNotExist):
        world.ask(topic="none")
    with pytest.raises(InvalidParameter):
        world.ask(queue_id=9)
    with pytest.raises(SubscriptionNotExist):
        world.ask(sys_flag=sysflag.PULL_SUSPEND)
    world.rules = world.rules._replace(lite_pull=False)
    with pytest.raises(NoPermission, match="lite pull"):
        world.ask(is_lite=True)
    world.rules = world.rules._replace(broker_readable=False)
    with pytest.raises(NoPermission, match="not readable"):
        world.ask(is_lite=True)
