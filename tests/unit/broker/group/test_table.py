from __future__ import annotations

import msgspec
import pytest

from rocketpost.broker.group import table as group_module
from rocketpost.broker.group.table import GroupTable
from rocketpost.codec.bodies.group import GroupTableBody, encode_group_table
from rocketpost.codec.faults import GroupNotExist, InvalidParameter, ServerError, SystemBusy
from rocketpost.errors import StoreError
from rocketpost.model.group import GroupChange, GroupConfig
from rocketpost.model.retry_policy import RetryPolicy
from rocketpost.testing.clock import FakeClock


def test_builtin_groups_are_there_once(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    table.add_builtin()
    table.add_builtin()
    assert "TOOLS_CONSUMER" in table.configs
    assert table.revision == len(table.configs) == 8


def test_groups_are_created_by_use(clock: FakeClock) -> None:
    changes: list[str] = []
    table = GroupTable(clock=clock, on_change=changes.append)
    assert table.find("G") is None
    made = table.find_or_create("G")
    assert made == GroupConfig(group_name="G")
    assert table.require("G") is made
    assert changes == ["G"]
    assert table.find_or_create("../G") is None
    assert table.find_or_create("x" * 121) is None


def test_groups_are_not_created_by_use_when_that_is_off(clock: FakeClock) -> None:
    table = GroupTable(clock=clock, auto_create=False)
    assert table.find_or_create("G") is None
    with pytest.raises(GroupNotExist, match="autoCreateSubscriptionGroup"):
        table.require("G")
    assert table.find_or_create("CID_RMQ_SYS_X") is not None
    assert table.find_or_create("TOOLS_CONSUMER") is not None


@pytest.mark.parametrize(
    "change",
    [
        {"group_name": "a b"},
        {"group_name": ""},
        {"retry_queue_nums": -1},
        {"retry_queue_nums": 2**31},
        {"retry_max_times": -2},
        {"consume_timeout_minute": 16},
        {"broker_id": -1},
        {"which_broker_when_consume_slowly": -1},
        {"group_sys_flag": 2},
        {"group_retry_policy": {"type": "NEVER"}},
    ],
)
def test_an_invalid_group_is_refused_and_changes_nothing(
    clock: FakeClock, change: dict[str, object]
) -> None:
    table = GroupTable(clock=clock)
    wanted = msgspec.structs.replace(GroupConfig(group_name="G"), **change)
    with pytest.raises(InvalidParameter):
        table.update(wanted)
    with pytest.raises(InvalidParameter):
        table.plan(wanted)
    assert not table.configs
    assert table.revision == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"consume_timeout_minute": 5}, "no broker or client of RocketMQ reads it"),
        ({"broker_id": -1}, "ids of brokers begin at 0"),
        ({"which_broker_when_consume_slowly": -1}, "ids of brokers begin at 0"),
        ({"group_retry_policy": {"type": "EXPONENTIAL"}}, "timerWheelEnable is false"),
    ],
)
def test_a_setting_without_effect_is_refused_with_the_reason(
    clock: FakeClock, change: dict[str, object], reason: str
) -> None:
    table = GroupTable(clock=clock, timed=False)
    with pytest.raises(InvalidParameter, match=reason):
        table.update(GroupConfig(group_name="G", **change))  # type: ignore[arg-type]


def test_a_retry_policy_changes_with_its_group(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    assert table.retry_policy("G") is None
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [7]}}
    table.update(GroupConfig(group_name="G", group_retry_policy=policy))
    assert table.retry_policy("G") == RetryPolicy((7,))
    table.update(GroupConfig(group_name="G"))
    assert table.retry_policy("G") is None


def test_settings_of_another_broker_without_effect_here_are_logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    table = GroupTable(clock=clock)
    table.load(
        b'{"subscriptionGroupTable":{"G":{"groupName":"G","brokerId":-3,'
        b'"groupRetryPolicy":{"type":"OTHER"}}}}'
    )
    assert "group setting without effect: group=G reason=brokerId=-3" in caplog.text
    assert table.retry_policy("G") is None
    assert "retry policy without effect: group=G" in caplog.text


def test_a_group_and_its_attributes_are_changed(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    table.update(GroupConfig(group_name="G", attributes={"+priority.factor": "5"}))
    table.update(GroupConfig(group_name="G", consume_enable=False))
    assert table.find("G") == GroupConfig(
        group_name="G", consume_enable=False, attributes={"priority.factor": "5"}
    )
    with pytest.raises(ServerError):
        table.update(GroupConfig(group_name="G", attributes={"+colour": "red"}))


def test_reading_can_be_forbidden_and_allowed_again(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    assert table.may_read("G", "T")
    table.forbid_reading("G", "T", forbidden=True)
    assert not table.may_read("G", "T")
    assert table.may_read("G", "U")
    assert table.body().forbidden_table == {"G": {"T": 4}}
    revision = table.revision
    table.forbid_reading("G", "T", forbidden=True)
    assert table.revision == revision
    table.forbid_reading("G", "T", forbidden=False)
    assert table.body().forbidden_table == {}


def test_forbidding_two_topics_keeps_the_other(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    table.forbid_reading("G", "T", forbidden=True)
    table.forbid_reading("G", "U", forbidden=True)
    table.forbid_reading("G", "T", forbidden=False)
    assert table.body().forbidden_table == {"G": {"U": 4}}


def test_a_group_is_deleted_with_what_was_forbidden_to_it(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    table.find_or_create("G")
    table.forbid_reading("G", "T", forbidden=True)
    assert table.delete("G") is not None
    assert table.delete("G") is None
    assert table.may_read("G", "T")
    for name in ("TOOLS_CONSUMER", "a/b"):
        with pytest.raises(InvalidParameter):
            table.delete(name)


def test_the_file_has_the_format_of_rocketmq_and_is_read_back(clock: FakeClock) -> None:
    table = GroupTable(clock=clock)
    table.find_or_create("G")
    table.forbid_reading("G", "T", forbidden=True)
    plain = msgspec.json.decode(table.to_json())
    assert list(plain) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    assert list(plain["subscriptionGroupTable"]["G"]) == [
        "attributes",
        "brokerId",
        "consumeBroadcastEnable",
        "consumeEnable",
        "consumeFromMinEnable",
        "consumeMessageOrderly",
        "consumeTimeoutMinute",
        "groupName",
        "groupRetryPolicy",
        "groupSysFlag",
        "notifyConsumerIdsChangedEnable",
        "retryMaxTimes",
        "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    ]
    other = GroupTable(clock=clock)
    other.load(table.to_json())
    assert (other.configs, other.version) == (table.configs, table.version)
    assert not other.may_read("G", "T")


@pytest.mark.parametrize("text", [b"", b"7", b'{"subscriptionGroupTable":{"a/b":{}}}'])
def test_a_file_that_is_not_a_group_table_is_refused(clock: FakeClock, text: bytes) -> None:
    with pytest.raises(StoreError, match="subscriptionGroup"):
        GroupTable(clock=clock).load(text)


def test_a_group_without_a_name_is_left_out(clock: FakeClock) -> None:
    """RocketMQ's broker has made it; a slave and the next owner of the store meet it."""
    table = GroupTable(clock=clock)
    table.load(b'{"subscriptionGroupTable":{"":{},"G":{}}}')
    assert set(table.configs) == {"G"}
    configs = {"": GroupConfig(), "G": GroupConfig(group_name="G")}
    table.follow(GroupTableBody(subscription_group_table=configs))
    assert "" not in table.configs
    assert "G" in table.configs


def test_a_group_used_after_the_last_save_is_restored(clock: FakeClock) -> None:
    saved = GroupTable(clock=clock)
    saved.find_or_create("Deleted")
    used_ms = clock.now_ms()
    clock.advance(10)
    saved.delete("Deleted")
    saved.find_or_create("Kept")
    table = GroupTable(clock=clock, auto_create=False)
    table.load(saved.to_json())
    table.adopt("Deleted", used_ms=used_ms)
    table.adopt("New", used_ms=clock.now_ms())
    table.adopt("a/b", used_ms=clock.now_ms())
    assert set(table.configs) == {"Kept", "New"}


def test_a_deleted_group_is_not_restored_by_the_next_leader(clock: FakeClock) -> None:
    leader, follower = GroupTable(clock=clock), GroupTable(clock=clock)
    leader.find_or_create("Deleted")
    used_ms = clock.now_ms()
    clock.advance(10)
    leader.delete("Deleted")
    follower.follow(leader.body())
    for table in (leader, follower):
        table.adopt("Deleted", used_ms=used_ms)
        assert table.find("Deleted") is None
        table.adopt("New", used_ms=clock.now_ms())
        assert table.find("New") is not None


def test_the_number_of_groups_is_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "GROUP_COUNT_MAX", 1)
    table = GroupTable(clock=clock)
    table.update(GroupConfig(group_name="A"))
    with pytest.raises(ServerError, match="accepts no more"):
        table.update(GroupConfig(group_name="B"))
    with pytest.raises(SystemBusy, match="creates no more automatically"):
        table.find_or_create("B")
    table.adopt("B", used_ms=clock.now_ms())  # at a start, which must not fail
    assert set(table.configs) == {"A", "B"}


def test_every_change_is_logged_with_its_client(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    table = GroupTable(clock=clock)
    table.add_builtin()
    assert not caplog.messages
    table.find_or_create("G", by="10.0.0.3:40000 cause=pull")
    table.find_or_create("G", by="10.0.0.3:40000 cause=pull")
    table.update(GroupChange(group_name="G", consume_enable=False), by="10.0.0.4:50000")
    table.delete("G", by="10.0.0.4:50000")
    assert caplog.messages == [
        "group created: group=G by=10.0.0.3:40000 cause=pull with default settings",
        "group changed: group=G by=10.0.0.4:50000 consumeEnable=true->false",
        "group deleted: group=G by=10.0.0.4:50000 consumeEnable=false",
    ]


def test_a_setting_without_effect_of_another_broker_does_not_block_changes(
    clock: FakeClock,
) -> None:
    table = GroupTable(clock=clock)
    foreign = GroupConfig(group_name="G", consume_timeout_minute=20)
    body = encode_group_table(GroupTableBody(subscription_group_table={"G": foreign}))
    table.load(body)
    assert table.update(GroupChange(group_name="G", retry_max_times=3)).retry_max_times == 3
    with pytest.raises(InvalidParameter, match="consumeTimeoutMinute=30"):
        table.update(GroupChange(group_name="G", consume_timeout_minute=30))
