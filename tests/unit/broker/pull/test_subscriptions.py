"""The messages that a pull wants, and pulls that are refused for their subscription."""

from __future__ import annotations

import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pull.subscriptions import EVERYTHING, PullSubscriptions
from rocketpost.client.compression import decompress
from rocketpost.codec.faults import (
    NoPermission,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
)
from rocketpost.codec.headers.message import PullMessage
from rocketpost.errors import Fault
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.group import GroupConfig, parse_tags
from rocketpost.model.sysflag import PULL_SUBSCRIPTION
from rocketpost.testing.clock import FakeClock

GROUP = GroupConfig(group_name="g")
VERSION = 5


class World:
    def __init__(self, clock: FakeClock) -> None:
        self.membership = Membership(clock=clock)
        self.groups = GroupTable(clock=clock, auto_create=True)
        self.subscriptions = PullSubscriptions(
            filters=Filters(table=FilterTable(clock=clock), unpack=decompress),
            membership=self.membership,
            groups=self.groups,
        )

    def join(self, expression: str = "*", *, model: str = "CLUSTERING") -> None:
        self.membership.join_consumer(
            "g",
            Client("connection", "c", "", "JAVA", 400),
            consume_type="CONSUME_PASSIVELY",
            message_model=model,
            consume_from_where="",
            subscriptions=[parse_tags("T", expression, version=VERSION)],
        )


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def pull(**more: object) -> PullMessage:
    return PullMessage(consumer_group="g", topic="T", queue_id=0, queue_offset=0, **more)  # type: ignore[arg-type]


def own(expression: str, kind: str | None = None) -> PullMessage:
    return pull(sys_flag=PULL_SUBSCRIPTION, subscription=expression, expression_type=kind)


def test_a_pull_uses_the_subscription_of_its_group(world: World) -> None:
    world.join("A || B")
    wanted = world.subscriptions.find(pull(sub_version=VERSION), GROUP)
    assert wanted.tags == {string_hash("A"), string_hash("B")}
    assert wanted.matcher is None


def test_a_pull_without_a_filter_wants_everything(world: World) -> None:
    world.join()
    assert world.subscriptions.find(pull(), GROUP) is EVERYTHING
    assert world.subscriptions.find(own("*"), GROUP) is EVERYTHING


def test_a_pull_may_bring_its_own_filter(world: World) -> None:
    assert world.subscriptions.find(own("A"), GROUP).tags == {string_hash("A")}
    wanted = world.subscriptions.find(own("a > 1", "SQL92"), GROUP)
    assert wanted.matcher is not None


@pytest.mark.parametrize(
    ("expression", "kind"), [("a >", "SQL92"), ("a", "CLASS"), ("A||" * 30_000, None)]
)
def test_an_invalid_filter_is_refused(world: World, expression: str, kind: str | None) -> None:
    with pytest.raises(Fault) as raised:
        world.subscriptions.find(own(expression, kind), GROUP)
    assert isinstance(raised.value, SubscriptionParseFailed) or kind == "CLASS"


def test_a_pull_that_relies_on_a_subscription_needs_one(world: World) -> None:
    with pytest.raises(SubscriptionNotExist, match="send a heartbeat first"):
        world.subscriptions.find(pull(), GROUP)
    world.join()
    other = PullMessage(consumer_group="g", topic="U", queue_id=0, queue_offset=0)
    with pytest.raises(SubscriptionNotExist, match="does not subscribe to U"):
        world.subscriptions.find(other, GROUP)
    with pytest.raises(SubscriptionNotLatest, match="older than the pull"):
        world.subscriptions.find(pull(sub_version=VERSION + 1), GROUP)


def test_a_group_may_be_forbidden_to_broadcast_or_to_read(world: World) -> None:
    world.join(model="BROADCASTING")
    silent = GroupConfig(group_name="g", consume_broadcast_enable=False)
    assert world.subscriptions.find(pull(), GROUP) is EVERYTHING
    with pytest.raises(NoPermission, match="broadcasting"):
        world.subscriptions.find(pull(), silent)
    world.groups.update(GROUP)
    world.groups.forbid_reading("g", "T", forbidden=True)
    with pytest.raises(NoPermission, match="forbidden to read the topic T"):
        world.subscriptions.find(pull(), GROUP)
