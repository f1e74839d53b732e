"""Attributes of topics and members of groups: what a running broker does with each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.sysflag import MULTI_TAGS

from .harness import broker, heartbeat


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


async def test_groupRetryPolicy_sets_when_a_message_is_redelivered(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [300]}}
        assert (await peer.group("G", groupRetryPolicy=policy)).code == 0
        sent = await peer.send("T")
        position = int(sent.fields["msgId"][16:], 16)
        await peer.ok(
            Code.CONSUMER_SEND_MSG_BACK, offset=position, group="G", delayLevel=0, originTopic="T"
        )
        # By the delay levels it would come after ten seconds, and without this property.
        [again] = await peer.records("%RETRY%G", hold_ms=30_000)
        assert again.reconsume_times == 1
        waited = int(again.properties["TIMER_DELIVER_MS"]) - again.born_ms
        assert waited > 0
        assert again.store_ms >= int(again.properties["TIMER_DELIVER_MS"])


@pytest.mark.parametrize(
    "members",
    [{"brokerId": -1}, {"whichBrokerWhenConsumeSlowly": -1}, {"consumeTimeoutMinute": 5}],
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


async def test_consumeEnable(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        assert (await peer.pull("T")).code == 0
        await peer.group("G", consumeEnable=False)
        assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION


async def test_consumeBroadcastEnable(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        await peer.ok(Code.HEART_BEAT, heartbeat("me", messageModel="BROADCASTING"))
        assert (await peer.pull("T", sysFlag=0)).code == 0
        await peer.group("G", consumeBroadcastEnable=False)
        assert (await peer.pull("T", sysFlag=0)).code == ResponseCode.NO_PERMISSION


async def test_the_retry_topic_of_a_group(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.group("G", retryQueueNums=3, consumeMessageOrderly=True)
        await peer.ok(Code.HEART_BEAT, heartbeat("me"))
        answer = await peer.ok(Code.GET_TOPIC_CONFIG, topic="%RETRY%G")
        config = msgspec.json.decode(answer.body)
        config = config.get("topicConfig", config)
        assert (config["writeQueueNums"], config["order"]) == (3, True)


async def test_retryMaxTimes(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.group("G", retryMaxTimes=0)
        sent = await peer.send("T")
        position = int(sent.fields["msgId"][16:], 16)
        back = {"offset": position, "group": "G", "delayLevel": 0, "originTopic": "T"}
        await peer.ok(Code.CONSUMER_SEND_MSG_BACK, **back)
        assert len(await peer.records("%DLQ%G")) == 1


async def test_flags_that_come_with_a_pull(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.group("G", groupSysFlag=1)
        await peer.topic("T", topicSysFlag=1)
        await peer.send("T")
        fields = (await peer.pull("T")).fields
        assert (fields["groupSysFlag"], fields["topicSysFlag"]) == ("1", "1")


async def test_perm_of_a_topic(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("T", perm=2)
        await peer.send("T")
        assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION


async def test_queues_of_a_topic(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("Read", readQueueNums=3, writeQueueNums=2)
        assert (await peer.pull("Read", queueId=2)).code == ResponseCode.PULL_NOT_FOUND
        assert (await peer.pull("Read", queueId=3)).code == ResponseCode.INVALID_PARAMETER
        await peer.topic("Write", readQueueNums=1, writeQueueNums=2)
        assert (await peer.send("Write", queue_id=1)).code == 0
        assert (await peer.send("Write", queue_id=2)).code == ResponseCode.INVALID_PARAMETER


async def test_order_of_a_topic(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("Ordered", order="true")
        await peer.topic("Plain")
        await peer.set(brokerPermission=4)
        assert (await peer.send("Plain")).code == 0
        assert (await peer.send("Ordered")).code == ResponseCode.NO_PERMISSION


async def test_topicFilterType(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("T", topicFilterType="MULTI_TAG")
        await peer.send("T")
        [record] = await peer.records("T")
        assert record.sys_flag & MULTI_TAGS
