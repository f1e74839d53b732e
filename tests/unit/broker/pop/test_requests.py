"""The outcome of a pop as a value: refused, answered or held."""

from __future__ import annotations

from typing import Any

import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pop.requests import PopAnswer, PopHold, PopPlace, PopRequests
from rocketpost.broker.pop.service import PopResult
from rocketpost.broker.pop.targets import Targets
from rocketpost.broker.topic import TopicTable
from rocketpost.client.compression import decompress
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import GroupNotExist, InvalidParameter, NoPermission, TopicNotExist
from rocketpost.codec.headers.pop import Notification, PopMessage
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.clock import FakeClock

NOTHING = PopResult([], 0, 0, 0, 0, is_cut=False)


class Somebody:
    """A caller that is no connection."""

    peer_text = "somebody"


class World:
    def __init__(self) -> None:
        clock = FakeClock()
        self.topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
        self.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
        self.groups = GroupTable(clock=clock)
        self.groups.update(GroupConfig(group_name="g"))
        self.requests = PopRequests(
            targets=Targets(topics=self.topics, random_below=lambda count: 0),
            topics=self.topics,
            groups=self.groups,
            filters=Filters(table=FilterTable(clock=clock), unpack=decompress),
        )

    def pop(self, **more: Any) -> Any:
        fields: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": -1,
            "max_msg_nums": 8,
            "invisible_time": 1000,
            "poll_time": 5000,
            "born_time": 0,
            "init_mode": 0,
        }
        return self.requests.pop_request(PopMessage(**(fields | more)), Somebody())

    def hold(self, poll_ms: int = 5000, **more: Any) -> PopHold:
        hold = self.requests.decide_pop(self.pop(**more), NOTHING, poll_ms)
        assert isinstance(hold, PopHold)
        return hold


@pytest.fixture
def world() -> World:
    return World()


def test_a_pop_that_finds_nothing_is_a_hold(world: World) -> None:
    hold = world.hold(exp="a || b")
    assert hold.place == PopPlace("T", "g", -1)
    assert (hold.seconds, hold.weight, hold.leaves_messages) == (5, 2, True)
    assert hold.retry_topics == ["%RETRY%g_T", "%RETRY%g+T"]
    assert not world.hold().leaves_messages  # it takes anything
    assert world.hold(queue_id=0).leaves_messages
    assert world.hold(poll_ms=10**9).seconds == 120


def test_a_pop_that_may_not_wait_is_answered(world: World) -> None:
    request = world.pop()
    timed_out = PopAnswer(ResponseCode.POLLING_TIMEOUT, request)
    assert world.requests.decide_pop(request, NOTHING, 0) == timed_out
    # There may be more to find: it asks again instead of waiting for an arrival.
    assert world.requests.decide_pop(request, NOTHING._replace(is_cut=True), 5000) == timed_out


def test_a_notification_request_is_answered_or_held(world: World) -> None:
    header = Notification(consumer_group="g", topic="T", queue_id=0, poll_time=5000, born_time=0)
    request = world.requests.notification_request(header, Somebody())
    found = world.requests.decide_notification(request, 5000, found=True)
    assert found == PopAnswer(ResponseCode.SUCCESS, request)
    hold = world.requests.decide_notification(request, 5000, found=False)
    assert isinstance(hold, PopHold)
    assert (hold.is_pop, hold.leaves_messages) == (False, True)


def test_a_resumed_pop_uses_the_current_topic_configuration(world: World) -> None:
    hold = world.hold()
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=9, write_queue_nums=9))
    fresh = {("T", 8): None}
    request = world.requests.renew(hold, fresh)
    assert request.topic.read_queue_nums == 9
    assert request.only == fresh
    world.groups.delete("g")
    with pytest.raises(GroupNotExist):
        world.requests.renew(hold, fresh)


def test_pops_that_are_refused(world: World) -> None:
    with pytest.raises(TopicNotExist):
        world.pop(topic="none")
    for wrong in ({"queue_id": 2}, {"max_msg_nums": 0}, {"invisible_time": -1}):
        with pytest.raises(InvalidParameter):
            world.pop(**wrong)
    world.groups.update(GroupConfig(group_name="g", consume_enable=False))
    with pytest.raises(NoPermission):
        world.pop()
    world.requests.broker_readable = False
    with pytest.raises(NoPermission, match="brokerPermission"):
        world.pop()
