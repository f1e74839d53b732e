"""Strangers who reach a broker's port cannot use up its tables, or make others skip messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command

from .harness import Peer, broker, connected

QUEUE = {"consumerGroup": "Victim", "topic": "T", "queueId": 0}
_COMMIT_WITH_PULL = 1 | 4


@pytest.mark.parametrize("offset", [2**63 - 1, 4])
async def test_nobody_can_make_a_group_skip_future_messages(
    tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        for _ in range(3):
            await peer.send("T")
        await peer.succeed(Code.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=2)
        refused = await peer.call(Code.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=offset)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "which ends at 3" in (refused.remark or "")
        pulled = await peer.call(
            Code.PULL_MESSAGE, **QUEUE, queueOffset=0, maxMsgNums=32, sysFlag=_COMMIT_WITH_PULL,
            commitOffset=offset, suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        assert pulled.code == ResponseCode.SUCCESS
        assert await peer.offset("Victim") == 2
        await peer.succeed(Code.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=3)
    assert caplog.text.count("commit refused") == 2


async def test_no_request_can_have_the_log_deleted(tmp_path: Path) -> None:
    harmful = (
        b"diskMaxUsedSpaceRatio=1\ndiskSpaceCleanForciblyRatio=1\ndiskSpaceWarningLevelRatio=1\n"
    )
    async with broker(tmp_path, cleanResourceInterval="20") as server, connected(server) as peer:
        before = (await peer.call(Code.GET_BROKER_CONFIG)).body
        for line in (*harmful.splitlines(), harmful, b"fileReservedTime=1\n"):
            refused = await peer.call(Code.UPDATE_BROKER_CONFIG, line)
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "is refused" in (refused.remark or "")
        assert (await peer.call(Code.GET_BROKER_CONFIG)).body == before
        await peer.send("T")
        status = await peer.status()
        assert float(status["diskUsedRatio"]) >= 0
        assert status["storeNotWritableReason"] == ""


async def test_made_up_names_do_not_fill_the_tables(tmp_path: Path) -> None:
    async with broker(tmp_path, autoCreatePerSecond="1") as server, connected(server) as peer:
        await peer.send("T")
        pull = {
            "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        codes = [
            (await peer.call(Code.PULL_MESSAGE, consumerGroup=f"made-up-{number}", **pull)).code
            for number in range(150)
        ]
        assert codes.count(ResponseCode.SUCCESS) < 120
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert codes[-1] == ResponseCode.SYSTEM_BUSY
        answers = [await _send_to(peer, f"made-up-{number}") for number in range(150)]
        assert [each.code for each in answers].count(ResponseCode.SUCCESS) < 120
        assert "too many topics are being created" in (answers[-1].remark or "")
        # Whoever was there before goes on, and an administrator finds room.
        assert (await _send_to(peer, "made-up-0")).code == ResponseCode.SUCCESS
        group = b'{"groupName":"Mine"}'
        await peer.succeed(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        await peer.succeed(Code.PULL_MESSAGE, consumerGroup="Mine", **pull)


async def test_a_refused_send_leaves_no_permanent_topic(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        refused = await _send_to(peer, "Empty", body=b"")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        await peer.send("Taken")
        await peer.send("Delayed", properties="DELAY\x013\x02")
    listed = json.loads((tmp_path / "config" / "autoCreatedTopics.json").read_bytes())
    del listed["rocketpostCheck"]
    assert list(listed) == ["Empty"]  # the only one that may be removed again


async def _send_to(peer: Peer, topic: str, body: bytes = b"body") -> Command:
    return await peer.call(
        Code.SEND_MESSAGE, body, producerGroup="P", topic=topic, defaultTopic="TBW102",
        defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, properties="",
    )  # fmt: skip
