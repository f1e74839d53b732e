"""Figures of brokers and groups: a part is never shown as the whole."""

from __future__ import annotations

from rocketpost.codec.bodies.offset import BrokerConsumeState, ConsumeState, QueueProgress
from rocketpost.console.collect.figures import (
    GroupTotals,
    add_byte_rates,
    describe_broker,
    merge_topics,
)
from rocketpost.console.collect.snapshot import BrokerView, GroupView, group_of_topic, topic_kind
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig

NOW = 1_000_000


def state(offset: int, end: int, *, topic: str = "Orders", broker: str = "a") -> BrokerConsumeState:
    progress = QueueProgress(
        broker_offset=end, consumer_offset=offset, last_timestamp=NOW - 4000, standing="busy"
    )
    queues = {MessageQueue(broker, 0, topic): progress}
    return BrokerConsumeState(
        broker_addr="", groups=[("g", [ConsumeState(queues=queues, consume_tps=1.5)])]
    )


def totals(at: float = 0.0) -> GroupTotals:
    return GroupTotals([("a", {"g": GroupConfig(), "CID_RMQ_SYS_X": GroupConfig()})], at=at)


def test_a_group_is_added_up_over_brokers() -> None:
    found = totals()
    found.add("a", state(3, 10), now_ms=NOW)
    found.add("b", state(9, 10, broker="b", topic="%RETRY%g"), now_ms=NOW)
    group = found.groups["g"]
    assert list(found.groups) == ["g"]
    assert (group.lag, group.retrying, group.delay_ms, group.out_rate) == (8, 1, 4000, 3.0)
    assert group.brokers == ["a", "b"]


def test_a_silent_broker_makes_its_groups_unknown() -> None:
    found = totals()
    found.fail("a", "no answer")
    group = found.groups["g"]
    assert group.lag is None
    assert group.state == "unknown"
    assert group.problem == "a: no answer"


def test_a_group_that_does_not_move_stands_still() -> None:
    before = totals()
    before.add("a", state(3, 10), now_ms=NOW)
    for at, end, expected in ((5, 12, "fine"), (28, 15, "fine"), (33, 17, "still")):
        now = totals(at)
        now.add("a", state(3, end), now_ms=NOW)
        now.compare(before.groups, before.still, seconds=5.0)
        group = now.groups["g"]
        assert group.state == expected
        before = now
    assert (group.still_queues, group.still_reason) == (1, "busy")
    assert group.change == 0.4
    assert group.drain_seconds is None


def test_a_group_that_commits_every_five_seconds_never_stands_still() -> None:
    before = totals()
    before.add("a", state(0, 10), now_ms=NOW)
    for at in range(5, 300, 5):  # every second round finds the offset where it was
        now = totals(at)
        now.add("a", state(at // 10, 10 + at), now_ms=NOW)
        now.compare(before.groups, before.still, seconds=5.0)
        assert now.groups["g"].still_queues == 0
        before = now


def test_a_group_that_moves_is_drained_some_time() -> None:
    before, now = totals(), totals()
    before.add("a", state(0, 100), now_ms=NOW)
    now.add("a", state(50, 100), now_ms=NOW)
    now.compare(before.groups, before.still, seconds=5.0)
    group = now.groups["g"]
    assert group.state == "fine"  # its next message is young
    assert group.drain_seconds == 5.0
    assert GroupView(name="g", lag=5, delay_ms=60_000).state == "behind"


def test_topics_of_brokers_are_merged() -> None:
    config = TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=4)
    topics = merge_topics([("a", {"Orders": config}), ("b", {"Orders": config})])
    assert topics["Orders"].read_queues == 8
    found = totals()
    found.add("a", state(3, 10), now_ms=NOW)
    found.add("b", state(3, 500, topic="%RETRY%g"), now_ms=NOW)
    found.finish(topics)
    assert topics["Orders"].groups == ["g"]
    assert topics["Orders"].worst_lag == 7  # in this topic


def test_topics_that_brokers_make_for_themselves_are_of_the_system() -> None:
    table = {name: TopicConfig(topic_name=name) for name in ("a", "C", "C_REPLY_TOPIC", "Orders")}
    topics = merge_topics([("a", table)], ["C"])
    kinds = {name: each.kind for name, each in topics.items()}
    assert kinds == {"a": "system", "C": "system", "C_REPLY_TOPIC": "system", "Orders": "normal"}


def test_kinds_of_topics() -> None:
    fifo = {"message.type": "FIFO"}
    assert topic_kind(TopicConfig(topic_name="T", attributes=fifo)) == "fifo"
    assert topic_kind(TopicConfig(topic_name="%RETRY%g")) == "retry"
    assert topic_kind(TopicConfig(topic_name="%DLQ%g")) == "dead"
    assert topic_kind(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX")) == "system"
    assert topic_kind(TopicConfig(topic_name="T")) == "normal"
    assert group_of_topic("%DLQ%g") == "g"
    assert group_of_topic("T") is None


def test_runtime_values_become_figures() -> None:
    view = BrokerView(cluster="c", name="a", broker_id=0, address="h:1")
    broker = describe_broker(
        view,
        {
            "putTps": "12.5 10.0 9.0",
            "commitLogDiskRatio": "0.4",
            "msgPutTotalTodayNow": "30",
            "msgPutTotalTodayMorning": "10",
            "commitLogMinOffset": "0",
            "commitLogMaxOffset": "99",
        },
    )
    assert (broker.in_tps, broker.in_today, broker.log_bytes) == (12.5, 20, 99)
    assert broker.out_tps is None
    assert describe_broker(view, {"putTps": "many"}).in_tps is None


def stored(tps: str, count: int, size: int, *, started: str = "1") -> BrokerView:
    runtime = {"putTps": tps, "bootTimestamp": started}
    runtime |= {"putMessageTimesTotal": str(count), "putMessageSizeTotal": str(size)}
    view = BrokerView(name="a", cluster="C", broker_id=0, address="a:1")
    return describe_broker(view, runtime)


def test_bytes_and_messages_of_a_broker_are_rates_of_the_same_time() -> None:
    def rate(now: BrokerView, *before: BrokerView) -> float | None:
        add_byte_rates([now], {each.address: each for each in before})
        return now.in_bytes

    first = stored("4.0", 10, 1_000)
    assert rate(first) == 400.0
    assert rate(stored("4.0", 10, 1_000), first) == 400.0  # the burst is over, and still counted
    assert rate(stored("2.0", 20, 6_000), first) == 1_000.0
    assert rate(stored("2.0", 5, 1_000, started="2"), first) == 400.0
    assert rate(stored("0.0", 0, 0)) == 0.0
    unknown = BrokerView(name="a", cluster="C", broker_id=0, address="a:1", in_tps=4.0)
    assert rate(unknown) is None
