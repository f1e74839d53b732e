"""The settings of a group act, and a follower passes on what only the leader can do."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.testing import free_port

from .group_brokers import NODES, TOPIC, Group, group_of_three
from .settings.harness import Peer, broker, until
from .test_group_tables import commit_offset, lock, offset_of


async def values_of(peer: Peer) -> dict[str, str]:
    """Return the values that brokerStatus shows."""
    answer = await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
    found: dict[str, str] = msgspec.json.decode(answer.body)["table"]
    return found


async def test_a_member_is_led_by_another(tmp_path: Path) -> None:
    peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(2))
    of_all = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerPeers": peers}
    async with (
        broker(tmp_path / "a", dLegerSelfId="n0", **of_all) as first,
        broker(tmp_path / "b", dLegerSelfId="n1", **of_all) as second,
    ):
        found: list[dict[str, str]] = []

        async def agree() -> bool:
            answers = [await peer.call(Code.GET_BROKER_RUNTIME_INFO) for peer in (first, second)]
            if any(answer.code for answer in answers):  # a broker that changes its role refuses
                return False
            found[:] = [decode_key_values(answer.body) for answer in answers]
            return {values["groupRole"] for values in found} == {"LEADER", "FOLLOWER"}

        await until(agree)
        assert [values["groupMember"] for values in found] == ["n0", "n1"]
        assert [values["groupVoters"] for values in found] == ["n0;n1", "n0;n1"]
        assert found[0]["groupLeader"] == found[1]["groupLeader"]


async def test_members_of_another_group_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = [free_port(), free_port()]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    of_all = {"enableDLegerCommitLog": "true", "dLegerPeers": peers}
    async with (
        broker(tmp_path / "a", dLegerGroup="a", dLegerSelfId="n0", **of_all),
        broker(tmp_path / "b", dLegerGroup="b", dLegerSelfId="n1", **of_all),
    ):

        async def is_refused() -> bool:
            return "belongs to the group 'a', not to 'b'" in caplog.text

        await until(is_refused)


async def test_preferredLeaderId(tmp_path: Path) -> None:
    async with group_of_three(tmp_path, preferredLeaderId="n2") as group:

        async def leads() -> bool:
            return list(group.serving()) == ["n2"]

        await until(leads)
        await group.send("n2", 5)
        await group.stop(["n2"])
        other = await group.leader()
        await group.send(other, 5)
        await group.start(["n2"])
        await until(leads)
        await group.send("n2", 5)
        await group.check()


async def follower_of(group: Group) -> tuple[str, str]:
    leader = await group.leader()
    return leader, next(node for node in NODES if node != leader)


async def test_a_follower_passes_requests_on_and_says_how_many(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader, follower = await follower_of(group)
        async with group.client(follower) as peer:
            assert (await peer.topic(TOPIC)).code == ResponseCode.SUCCESS
            await group.send(follower, 10)
            await commit_offset(peer, 7)
            assert await offset_of(peer) == 7
            assert await lock(peer, "a")
            assert not await lock(peer, "b")
            values = await values_of(peer)
            assert int(values["groupRequestsPassedOn"]) >= 15
            assert values["groupRequestsNotPassedOn"] == "0"
        async with group.client(leader) as peer:
            assert await offset_of(peer) == 7
        await group.check()


async def test_a_request_is_passed_on_once(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        _, follower = await follower_of(group)
        async with group.client(follower) as peer:
            answer = await peer.call(Code.UNLOCK_BATCH_MQ, b"{}", passedOn="true")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_stale_client_sends_on_through_a_change_of_leader(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 5)
        member = group.servers[first].group
        assert member is not None
        async with group.client(first) as peer:
            change = asyncio.create_task(member.hand_over())
            sent = 0
            while sent < 40 or not change.done():
                answer = await peer.send(TOPIC, b"late %d" % sent)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                group.stored[int(answer.fields["queueOffset"])] = b"late %d" % sent
                sent += 1
            await change
        assert list(group.serving()) != [first]
        await group.check()


async def test_without_a_majority_nothing_is_acknowledged_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path) as group:
        leader, follower = await follower_of(group)
        await group.send(leader, 5)
        await group.stop([node for node in NODES if node != follower])

        async def has_no_leader() -> bool:
            return group.serving() == {}

        await until(has_no_leader)
        async with group.client(follower) as peer:
            answer = await peer.send(TOPIC, b"lost")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "has no leader" in (answer.remark or "")
            answer = await peer.topic("Lost")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert len(await peer.records(TOPIC)) == 5, "what is committed can be read"


async def test_a_held_pull_at_a_follower_gets_the_next_message(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader, follower = await follower_of(group)
        await group.send(leader, 1)
        await group.check()
        async with group.client(follower) as peer:
            await peer.group("G")
            await group.until_equal_tables()
            held = asyncio.create_task(peer.pull(TOPIC, 1, hold_ms=20_000))
            await asyncio.sleep(0)
            await group.send(leader, 1)
            assert (await held).code == ResponseCode.SUCCESS


async def test_a_client_that_pulls_notices_no_change_of_leader(tmp_path: Path) -> None:
    """Held pulls are answered, and those that follow at once wait for the next term."""
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 1)
        member = group.servers[first].group
        assert member is not None
        async with group.client(first) as peer:
            await peer.group("G")
            codes: list[int] = []

            async def pull_on() -> None:
                while ResponseCode.SUCCESS not in codes:
                    codes.append((await peer.pull(TOPIC, 1, hold_ms=20_000)).code)

            pulling = asyncio.create_task(pull_on())
            await asyncio.sleep(0)
            await peer.group("G")  # by then the pull is held
            await member.hand_over()
            await group.send(await group.leader(), 1)
            await pulling
        assert codes == [ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS]


async def test_a_java_dledger_peer_is_refused_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with group_of_three(tmp_path) as group:
        await group.leader()
        body = (
            b'{"code":200,"group":"g","leaderId":"n1","ledgerEndIndex":-1,"ledgerEndTerm":-1,'
            b'"localId":"n1","remoteId":"n0","term":0}'
        )
        header = b'{"code":51001,"flag":0,"language":"JAVA","opaque":1,"version":479}'
        frame = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
        reader, writer = await asyncio.open_connection("127.0.0.1", group.ports["n0"])
        writer.write(frame)
        assert await reader.read() == b""
        writer.close()
        assert "DLedger" in caplog.text
        assert "A group has brokers" in caplog.text
