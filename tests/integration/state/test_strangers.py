"""Strangers who reach a broker's port cannot use up its tables, or make others skip messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode

from .harness import broker, connected

QUEUE = {"consumerGroup": "Victim", "topic": "T", "queueId": 0}
_COMMIT_WITH_PULL = 1 | 4


@pytest.mark.parametrize("offset", [2**63 - 1, 4])
async def test_nobody_can_make_a_group_skip_what_is_still_to_come(
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
