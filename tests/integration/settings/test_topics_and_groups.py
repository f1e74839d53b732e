"""Attributes of topics and members of groups: what a running broker does with each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode

from .harness import broker


async def test_message_type_of_a_topic_and_whether_it_is_checked(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        assert (await peer.topic("Fifo", "+message.type=FIFO")).code == 0
        assert (await peer.send("Fifo")).code == 0
        refused = await peer.send("Fifo", DELAY="2")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "message.type=FIFO" in (refused.remark or "")
        await peer.set(enableTopicMessageTypeCheck="false")
        assert (await peer.send("Fifo", DELAY="2")).code == 0


async def test_enableMixedMessageType(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        refused = await peer.topic("Any", "+message.type=MIXED")
        assert refused.code == ResponseCode.INVALID_PARAMETER
        await peer.set(enableMixedMessageType="true")
        assert (await peer.topic("Any", "+message.type=MIXED")).code == 0
        assert (await peer.send("Any", DELAY="2")).code == 0


async def test_groupRetryPolicy_says_when_a_message_comes_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [300]}}
        assert (await peer.group("G", groupRetryPolicy=policy)).code == 0
        sent = await peer.send("T")
        position = int(sent.fields["msgId"][16:], 16)
        await peer.ok(
            Code.CONSUMER_SEND_MSG_BACK, offset=position, group="G", delayLevel=0, originTopic="T"
        )
        # By the delay levels it would come after ten seconds.
        [again] = await peer.records("%RETRY%G", hold_ms=5000)
        assert again.reconsume_times == 1
        waited = int(again.properties["TIMER_DELIVER_MS"]) - again.born_ms
        assert waited > 0
        assert again.store_ms >= int(again.properties["TIMER_DELIVER_MS"])


@pytest.mark.parametrize(
    "members",
    [{"brokerId": 1}, {"whichBrokerWhenConsumeSlowly": 2}, {"consumeTimeoutMinute": 5}],
)
async def test_members_of_groups_that_would_not_act(
    tmp_path: Path, members: dict[str, int]
) -> None:
    async with broker(tmp_path) as peer:
        refused = await peer.group("G", **members)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert f"{min(members)}={members[min(members)]} cannot be honoured" in (
            refused.remark or ""
        )
