"""Acknowledged changes of an administrator survive a kill -9 at that moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode

from .harness import Peer, broker, connected, copy_files

RESET = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}

Step = Callable[[Peer], Awaitable[object]]
Check = Callable[[Peer], Awaitable[bool]]


@asynccontextmanager
async def killed_after(root: Path, *steps: Step) -> AsyncIterator[Peer]:
    """A client of the broker that was started on the files which the last answer left."""
    never = {"flushConsumerOffsetInterval": "100000"}
    async with broker(root / "before", **never) as server, connected(server) as peer:
        for _ in range(3):
            await peer.send("T")
        for group in ("G", "H"):
            body = msgspec.json.encode({"groupName": group})
            await peer.succeed(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        for step in steps:
            await step(peer)
        killed = copy_files(root / "before", root / "killed")
    async with broker(killed) as server, connected(server) as peer:
        yield peer


def update(offset: int, group: str = "G") -> Step:
    return lambda peer: peer.succeed(
        Code.UPDATE_CONSUMER_OFFSET, topic="T", consumerGroup=group, queueId=0, commitOffset=offset
    )


def ask(code: int, body: object = None, **fields: object) -> Step:
    data = b"" if body is None else msgspec.json.encode(body)
    return lambda peer: peer.succeed(code, data, **fields)


def has_offset(offset: int | None, group: str = "G") -> Check:
    async def check(peer: Peer) -> bool:
        return await peer.offset(group) == offset

    return check


def shows(code: int, text: bytes, *, absent: bool = False) -> Check:
    async def check(peer: Peer) -> bool:
        return (text in (await peer.succeed(code)).body) is not absent

    return check


CHANGES: dict[str, tuple[list[Step], Check]] = {
    "reset": ([update(3), ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, **RESET)], has_offset(0)),
    "clone": (
        [update(2), ask(Code.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H", topic="T")],
        has_offset(2, "H"),
    ),
    "an offset that is set": ([update(1)], has_offset(1)),
    "group deleted with its offsets": (
        [update(1), ask(Code.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset="true")],
        has_offset(None),
    ),
    "request mode": (
        [ask(Code.SET_MESSAGE_REQUEST_MODE, {"topic": "T", "consumerGroup": "G", "mode": "POP"})],
        shows(Code.GET_ALL_MESSAGE_REQUEST_MODE, b"POP"),
    ),
    "reading forbidden": (
        [ask(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, topic="T", group="G", readable="false")],
        shows(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b'"forbiddenTable":{"G":{"T"'),
    ),
    "topic deleted": (
        [ask(Code.DELETE_TOPIC_IN_BROKER, topic="T")],
        shows(Code.GET_ALL_TOPIC_CONFIG, b'"T":', absent=True),
    ),
    "setting": (
        [lambda peer: peer.succeed(Code.UPDATE_BROKER_CONFIG, b"traceOn=false\n")],
        shows(Code.GET_BROKER_CONFIG, b"traceOn=false"),
    ),
    "named filter": (
        [
            lambda peer: peer.succeed(Code.UPDATE_BROKER_CONFIG, b"namedFilterEnable=true\n"),
            ask(Code.PUT_NAMED_FILTER, {"name": "big", "expression": "a > 5"}),
        ],
        shows(Code.GET_NAMED_FILTERS, b"big"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
async def test_an_acknowledged_change_survives_a_kill(tmp_path: Path, name: str) -> None:
    steps, check = CHANGES[name]
    async with killed_after(tmp_path, *steps) as peer:
        assert await check(peer)


@pytest.mark.slow
async def test_a_consumer_that_returns_after_a_kill_does_not_undo_a_reset(
    tmp_path: Path,
) -> None:
    reset = ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, **RESET)
    async with killed_after(tmp_path, update(3), reset) as peer:
        late = await peer.call(
            Code.UPDATE_CONSUMER_OFFSET, topic="T", consumerGroup="G", queueId=0, commitOffset=3
        )
        assert "has been reset" in (late.remark or "")
        subscription = {"topic": "T", "subString": "*", "subVersion": 1}
        member = {"groupName": "G", "subscriptionDataSet": [subscription]}
        await ask(Code.HEART_BEAT, {"clientID": "c", "consumerDataSet": [member]})(peer)
        pulled = await peer.call(
            Code.PULL_MESSAGE, consumerGroup="G", topic="T", queueId=0, queueOffset=3,
            maxMsgNums=32, sysFlag=0, commitOffset=0, suspendTimeoutMillis=0, subVersion=1,
        )  # fmt: skip
        assert pulled.code == ResponseCode.PULL_OFFSET_MOVED
        assert pulled.fields["nextBeginOffset"] == "0"
