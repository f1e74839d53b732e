from __future__ import annotations

import msgspec
import pytest

from rocketpost.broker import topic as topic_module
from rocketpost.broker.topic import TopicRules, TopicTable
from rocketpost.codec.faults import InvalidParameter, ServerError, TopicNotExist
from rocketpost.errors import StoreError
from rocketpost.model.topic import TopicChange, TopicConfig
from rocketpost.testing.clock import FakeClock


def make(clock: FakeClock, **rules: object) -> tuple[TopicTable, list[str]]:
    changes: list[str] = []
    table = TopicTable(
        clock=clock,
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        rules=TopicRules(**rules),  # type: ignore[arg-type]
        on_change=changes.append,
    )
    return table, changes


def test_builtin_topics_have_the_queue_numbers_and_permissions_of_rocketmq(
    clock: FakeClock,
) -> None:
    table, _ = make(clock, trace_topic="RMQ_SYS_TRACE_TOPIC")
    table.add_builtin()
    shape = {name: (config.read_queue_nums, config.perm) for name, config in table.configs.items()}
    assert shape == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
    }
    assert all(c.write_queue_nums == c.read_queue_nums for c in table.configs.values())
    assert table.configs.keys() <= table.system_topics


def test_builtin_topics_follow_the_current_settings(clock: FakeClock) -> None:
    first, _ = make(clock)
    first.add_builtin()
    second, _ = make(clock, auto_create=False, cluster_topic=False, broker_topic=False)
    second.load(first.to_json())
    second.add_builtin()
    assert second.find("TBW102") is None
    assert second.require("DefaultCluster").perm == 1
    assert second.require("broker-a").perm == 1


def test_a_topic_is_created_changed_and_left_alone_when_equal(clock: FakeClock) -> None:
    table, changes = make(clock)
    wanted = TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=4)
    assert table.update(wanted) == (None, wanted)
    clock.advance(5)
    before, after = table.update(msgspec.structs.replace(wanted, perm=4))
    assert (before, after.perm) == (wanted, 4)
    version = table.version
    table.update(msgspec.structs.replace(wanted, perm=4))
    assert table.version == version
    assert (version.counter, version.timestamp) == (2, clock.now_ms())
    assert changes == ["Orders", "Orders"]


@pytest.mark.parametrize(
    "change",
    [
        {"topic_name": ""},
        {"topic_name": "../etc"},
        {"topic_name": "a.b"},
        {"topic_name": "x" * 128},
        {"topic_name": "TBW102"},
        {"topic_name": "rmq_sys_mine"},
        {"topic_name": "DefaultCluster"},
        {"read_queue_nums": 0},
        {"write_queue_nums": -1},
        {"write_queue_nums": 2**31},
        {"perm": 8},
        {"perm": -1},
        {"topic_filter_type": "ANY"},
        {"topic_sys_flag": 4},
        {"attributes": {"+message.type": "MIXED"}},
    ],
)
def test_an_invalid_topic_is_refused_and_changes_nothing(
    clock: FakeClock, change: dict[str, object]
) -> None:
    table, changes = make(clock)
    wanted = msgspec.structs.replace(TopicConfig(topic_name="Orders"), **change)
    with pytest.raises(InvalidParameter):
        table.update(wanted)
    with pytest.raises(InvalidParameter):
        table.plan(wanted)
    assert not table.configs
    assert not changes


def test_signed_keys_change_attributes(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.update(TopicConfig(topic_name="T", attributes={"+message.type": "FIFO"}))
    assert table.require("T").attributes == {"message.type": "FIFO"}
    with pytest.raises(ServerError):
        table.plan(TopicConfig(topic_name="T", attributes={"-reserve.time": ""}))
    table.plan(TopicConfig(topic_name="T", attributes={"-message.type": ""}))
    table.update(TopicConfig(topic_name="T", attributes={"-message.type": ""}))
    assert table.require("T").attributes == {}


def test_a_send_creates_a_topic_from_its_template(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.add_builtin()
    made = table.create_on_send("New", template="TBW102", queue_nums=4, unit_mode=True)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.topic_sys_flag) == (
        4,
        4,
        6,
        1,
    )
    assert table.create_on_send("New", template="TBW102", queue_nums=1) is made
    wide = table.create_on_send("Wide", template="TBW102", queue_nums=100)
    assert wide is not None
    assert wide.write_queue_nums == 8
    narrow = table.create_on_send("Narrow", template="TBW102", queue_nums=-3)
    assert narrow is not None
    assert narrow.write_queue_nums == 1


def test_a_send_creates_nothing_when_it_may_not(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.add_builtin()
    assert table.create_on_send("New", template="NoSuch", queue_nums=4) is None
    assert table.create_on_send("New", template="BenchmarkTest", queue_nums=4) is None
    table.rules = TopicRules(auto_create=False)
    assert table.create_on_send("New", template="TBW102", queue_nums=4) is None
    with pytest.raises(InvalidParameter):
        table.create_on_send("a/b", template="TBW102", queue_nums=4)
    assert table.find("New") is None


def test_retry_topics_are_created_once_and_follow_the_order_flag(clock: FakeClock) -> None:
    table, changes = make(clock)
    made = table.create_internal("%RETRY%G", queue_nums=2, unit=True)
    assert (made.write_queue_nums, made.perm, made.topic_sys_flag) == (2, 6, 2)
    assert table.create_internal("%RETRY%G", queue_nums=9) is made
    ordered = table.create_internal("%RETRY%G", queue_nums=9, order=True)
    assert (ordered.order, ordered.write_queue_nums) == (True, 2)
    assert table.create_internal("%DLQ%G", queue_nums=0).write_queue_nums == 1
    assert changes == ["%RETRY%G", "%RETRY%G", "%DLQ%G"]
    with pytest.raises(InvalidParameter):
        table.create_internal("%RETRY%../G", queue_nums=1)


def test_topics_that_only_the_store_knows_are_adopted(clock: FakeClock) -> None:
    table, changes = make(clock)
    table.update(TopicConfig(topic_name="Known", write_queue_nums=1))
    for name in ("Known", "Lost", "../x"):
        table.adopt(name, queue_nums=3)
    assert changes == ["Known", "Lost"]
    assert table.require("Lost").read_queue_nums == table.require("Lost").write_queue_nums == 3


def test_order_flags_follow_the_name_server(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.update(TopicConfig(topic_name="A"))
    table.update(TopicConfig(topic_name="B", order=True))
    table.mark_ordered(["A", "unknown"])
    assert table.require("A").order
    assert not table.require("B").order


def test_a_topic_is_deleted_once(clock: FakeClock) -> None:
    table, changes = make(clock)
    table.add_builtin()
    table.update(TopicConfig(topic_name="T"))
    changes.clear()
    assert table.delete("T") is not None
    assert table.delete("T") is None
    assert changes == ["T"]
    with pytest.raises(TopicNotExist):
        table.require("T")
    for name in ("TBW102", "DefaultCluster", "../x"):
        with pytest.raises(InvalidParameter):
            table.delete(name)


def test_the_file_has_the_format_of_rocketmq_and_is_read_back(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.update(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8))
    plain = msgspec.json.decode(table.to_json())
    assert plain == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": clock.now_ms()},
        "topicConfigTable": {
            "T": {
                "attributes": {},
                "order": False,
                "perm": 6,
                "readQueueNums": 8,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "T",
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
        },
    }
    other, changes = make(clock)
    other.load(table.to_json())
    assert (other.configs, other.version) == (table.configs, table.version)
    assert not changes


def test_a_name_with_a_plus_sign_from_java_is_loaded(clock: FakeClock) -> None:
    table, _ = make(clock)
    table.load(b'{"topicConfigTable":{"%RETRY%G+T":{"perm":6,"topicName":null}}}')
    assert table.require("%RETRY%G+T").topic_name == "%RETRY%G+T"


@pytest.mark.parametrize("text", [b"", b"[]", b'{"topicConfigTable":{"../x":{}}}'])
def test_a_file_that_is_not_a_topic_table_is_refused(clock: FakeClock, text: bytes) -> None:
    table, _ = make(clock)
    with pytest.raises(StoreError, match=r"topics\.json"):
        table.load(text)


def test_a_touched_table_has_a_new_version(clock: FakeClock) -> None:
    table, changes = make(clock)
    table.touch()
    assert (table.version.counter, table.revision, changes) == (1, 1, [""])


def test_the_number_of_topics_is_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_module, "TOPIC_COUNT_MAX", 1)
    table, _ = make(clock)
    table.update(TopicConfig(topic_name="A"))
    with pytest.raises(ServerError, match="accepts no more"):
        table.update(TopicConfig(topic_name="B"))
    table.update(TopicConfig(topic_name="A", perm=4))
    table.adopt("B", queue_nums=1)  # at a start, which must not fail
    assert set(table.configs) == {"A", "B"}


def test_the_order_of_a_retry_topic_follows_its_group_not_the_name_servers() -> None:
    table, _ = make(FakeClock())
    table.create_internal("%RETRY%g", queue_nums=1, order=True)
    revision = table.revision
    table.mark_ordered([])
    assert table.revision == revision


def test_every_change_is_logged_with_its_client(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    table, _ = make(clock)
    table.add_builtin()
    assert not caplog.messages  # what the broker makes for itself is no news
    by = "10.0.0.3:40000 cause=send producer_group=P"
    table.create_on_send("New", template="TBW102", queue_nums=4, by=by)
    table.create_internal("%RETRY%G", queue_nums=1, by="10.0.0.3:40000 cause=heartbeat")
    table.mark_ordered(["New"])
    table.update(TopicChange(topic_name="New", read_queue_nums=8), by="10.0.0.4:50000")
    table.update(TopicChange(topic_name="New", read_queue_nums=8), by="10.0.0.4:50000")
    table.delete("New", by="10.0.0.4:50000")
    table.delete("New", by="10.0.0.4:50000")
    members = "perm=6 readQueueNums={} topicFilterType=SINGLE_TAG topicSysFlag=0 writeQueueNums={}"
    assert caplog.messages == [
        f"topic created: topic=New by={by} order=false {members.format(4, 4)}",
        "topic created: topic=%RETRY%G by=10.0.0.3:40000 cause=heartbeat "
        f"order=false {members.format(1, 1)}",
        "topic changed: topic=New by=the order table order=false->true",
        "topic changed: topic=New by=10.0.0.4:50000 readQueueNums=4->8",
        f"topic deleted: topic=New by=10.0.0.4:50000 order=true {members.format(8, 4)}",
    ]
