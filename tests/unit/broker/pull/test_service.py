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
    SystemBusy,
    TopicNotExist,
)
from rocketpost.codec.headers.message import PullMessage
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import sysflag
from rocketpost.model.group import GroupConfig

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
        self.has_master = False
        self.reader = QueueReader(
            records=self.store,
            access=self.store.integrity.reader,
            limits=PullLimits(memory_bytes=2**30),
        )
        self.service = PullService(
            reader=self.reader,
            topics=self.topics,
            groups=self.groups,
            subscriptions=PullSubscriptions(
                filters=filters, membership=Membership(clock=self.clock), groups=self.groups
            ),
            offsets=self.offsets,
            stats=self.stats,
            rules=lambda: self.rules,
            has_master=lambda: self.has_master,
        )

    def forget_all(self) -> None:
        """Have every message count as one that is no longer in memory."""
        self.reader.limits = self.reader.limits._replace(memory_bytes=0)

    def configure_group(self, **fields: int) -> None:
        """Set which brokers a group reads from."""
        self.groups.update(GroupConfig(group_name=GROUP, **fields))  # type: ignore[arg-type]

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


# Masters and slaves.


def answered(outcome: PullAnswer | PullHold) -> PullAnswer:
    assert isinstance(outcome, PullAnswer)
    return outcome


def test_a_master_sends_readers_of_old_messages_to_a_slave(world: PullWorld) -> None:
    world.rules = world.rules._replace(reads_from_slaves=True)
    for _ in range(3):
        world.send(0, "a")
    assert answered(world.ask()).suggested_id == 0
    world.forget_all()
    assert answered(world.ask()).suggested_id == 1
    world.configure_group(which_broker_when_consume_slowly=2)
    assert answered(world.ask()).suggested_id == 2


def test_the_last_record_read_decides_whether_a_reader_is_far_behind(world: PullWorld) -> None:
    world.rules = world.rules._replace(reads_from_slaves=True)
    world.send(0, "a")
    begin = world.store.end_position
    world.send(0, "a")
    world.reader.limits = world.reader.limits._replace(
        memory_bytes=world.store.end_position - begin
    )
    assert answered(world.ask(max_msg_nums=1)).suggested_id == 1
    assert answered(world.ask(max_msg_nums=2)).suggested_id == 0
    assert answered(world.ask(max_msg_nums=1, subscription="a")).suggested_id == 1


def test_a_group_may_always_read_from_another_broker(world: PullWorld) -> None:
    world.rules = world.rules._replace(reads_from_slaves=True)
    world.configure_group(broker_id=3)
    world.send(0, "a")
    assert answered(world.ask()).suggested_id == 3
    assert world.service.resume(hold_of(world)).suggested_id == 3


def hold_of(world: PullWorld) -> PullHold:
    hold = world.ask(1)
    assert isinstance(hold, PullHold)
    return hold


def test_nobody_is_sent_to_a_slave_unless_slaves_may_be_read(world: PullWorld) -> None:
    world.configure_group(broker_id=3)
    world.send(0, "a")
    world.forget_all()
    assert answered(world.ask()).suggested_id == 0


def test_a_slave_refuses_pulls_unless_it_may_be_read(world: PullWorld) -> None:
    world.rules = world.rules._replace(is_slave=True)
    begin = r"^\[REJECTREQUEST\]system busy, start flow control for a while"
    with pytest.raises(SystemBusy, match=begin):
        world.ask()


@pytest.fixture
def slave(world: PullWorld) -> PullWorld:
    world.rules = world.rules._replace(is_slave=True, reads_from_slaves=True)
    return world


def test_a_slave_sends_readers_back_to_a_live_master(slave: PullWorld) -> None:
    slave.send(0, "a")
    slave.has_master = True
    answer = answered(slave.ask())
    assert (answer.pulled.code, answer.suggested_id) == (ResponseCode.SUCCESS, 0)
    for offset in (1, 5):  # the next one, and one that this slave does not have yet
        answer = answered(slave.ask(offset))
        assert answer.pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (answer.pulled.next_offset, answer.suggested_id) == (offset, 0)


def test_a_slave_keeps_readers_that_are_far_behind(slave: PullWorld) -> None:
    slave.send(0, "a")
    slave.has_master = True
    slave.forget_all()
    assert answered(slave.ask()).suggested_id == 1


def test_a_slave_without_a_master_serves_as_one(slave: PullWorld) -> None:
    hold = slave.ask()
    assert isinstance(hold, PullHold)
    slave.send(0, "a")
    answer = slave.service.resume(hold)
    assert (answer.pulled.code, answer.suggested_id) == (ResponseCode.SUCCESS, 0)
    hold = slave.ask(1)
    assert isinstance(hold, PullHold)
    slave.has_master = True  # it is back
    answer = slave.service.resume(hold)
    assert answer.pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (answer.pulled.next_offset, answer.suggested_id) == (1, 0)


def test_a_slave_does_not_correct_an_offset_that_its_master_may_have(slave: PullWorld) -> None:
    slave.send(0, "a")
    hold = slave.ask(7)
    assert isinstance(hold, PullHold)
    answer = slave.service.resume(hold)
    assert (answer.pulled.code, answer.pulled.next_offset) == (ResponseCode.PULL_NOT_FOUND, 7)
    slave.rules = slave.rules._replace(slave_corrects_offsets=True)
    answer = answered(slave.ask(7))
    assert (answer.pulled.code, answer.pulled.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 1)
    slave.has_master = True
    answer = answered(slave.ask(7))
    assert answer.pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.pulled.next_offset == 7
