from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.group import (
    GroupNames,
    GroupSubscription,
    GroupTableBody,
    decode_group_change,
    decode_group_changes,
    decode_group_config,
    decode_group_table,
    encode_group_configs,
    encode_group_table,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.changes import apply
from rocketpost.model.group import GroupChange, GroupConfig

GROUP_TEXT = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
    b'"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)


def test_the_group_table_is_javas_text() -> None:
    body = GroupTableBody(subscription_group_table={"G": GroupConfig(group_name="G")})
    assert encode_group_table(body) == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"forbiddenTable":{},'
        b'"subscriptionGroupTable":{"G":%b}}' % GROUP_TEXT
    )
    assert decode_group_table(encode_group_table(body)) == body


def test_a_group_may_leave_out_what_it_does_not_change() -> None:
    assert decode_group_config(GROUP_TEXT) == GroupConfig(group_name="G")
    text = b'{"groupName":"G","retryMaxTimes":"3","groupRetryPolicy":null,"other":1}'
    assert decode_group_config(text) == GroupConfig(group_name="G", retry_max_times=3)
    assert decode_group_change(text) == GroupChange(group_name="G", retry_max_times=3)


def test_lists_of_groups_go_there_and_back() -> None:
    groups = [GroupConfig(group_name="G"), GroupConfig(group_name="H")]
    changes = decode_group_changes(encode_group_configs(groups))
    assert [apply(change, GroupConfig()) for change in changes] == groups
    assert msgspec.json.encode(GroupNames(["G"])) == b'{"groupList":["G"]}'
    text = msgspec.json.encode(GroupSubscription(group="G", topic="T"))
    assert text == b'{"group":"G","topic":"T"}'


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"retryMaxTimes":"often"}'])
def test_a_group_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_group_config(body)
