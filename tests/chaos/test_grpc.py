"""The gRPC port under kill -9: in the broker's process, in front of a broker, of a group."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from integration.up_group import UpGroup, up_group
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.process import PROGRAM, ServerProcess, free_port
from rocketpost.testing.proxy.load import GrpcLoad

TOPIC, GROUP = "Killed", "survivors"
OUTAGE_SECONDS_MAX = 10
"""An election takes a second, and the proxy learns of it at once: this is for a busy machine."""
ODD = [str(Path(__file__).with_name("odd_proxy.py"))]
QUICK = {
    "remotingListenPort": 0,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 100,
    "grpcClientConsumerMaxLongPollingTimeoutMillis": 500,
    "enableTopicMessageTypeCheck": False,
}


class Servers:
    """A name server, a broker and, if it is apart, a proxy."""

    def __init__(self, directory: Path, *, is_apart: bool, program: Any = PROGRAM) -> None:
        self.name_server, broker, self.grpc = free_port(), free_port(), free_port()
        self.broker = f"127.0.0.1:{broker}"
        files = {
            "namesrv": {"listenPort": self.name_server},
            "broker": {
                **SMALL_STORE,
                "brokerName": "broker-a",
                "listenPort": broker,
                "brokerIP1": "127.0.0.1",
                "namesrvAddr": f"127.0.0.1:{self.name_server}",
                "storePathRootDir": directory / "store",
            },
        }
        for name, values in files.items():
            text = "".join(f"{key}={value}\n" for key, value in values.items())
            (directory / f"{name}.conf").write_text(text)
        proxy = directory / "rmq-proxy.json"
        proxy.write_text(json.dumps({"grpcServerPort": self.grpc, **QUICK}))
        words = ["mqnamesrv", "-c", str(directory / "namesrv.conf")]
        start = [ServerProcess(words, ready=r"boot success")]
        words = ["mqbroker", "-c", str(directory / "broker.conf")]
        words += [] if is_apart else ["--enable-proxy", "-pc", str(proxy)]
        self.mortal = [ServerProcess(words, ready=r"boot success", program=program)]
        if is_apart:
            words = ["mqproxy", "-n", f"127.0.0.1:{self.name_server}", "-pc", str(proxy)]
            self.mortal.append(ServerProcess(words, ready=r"boot success"))
        self.all = start + self.mortal

    def __enter__(self) -> Servers:
        try:
            for server in self.all:
                server.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.all:
            server.kill()

    async def make_topic(self) -> None:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
        async with AdminClient(name_servers=f"127.0.0.1:{self.name_server}") as admin:
            await admin.topics.create(self.broker, config)


async def _campaign(servers: Servers, chance: random.Random, kills: int) -> GrpcLoad:
    await servers.make_topic()
    load = GrpcLoad(servers.grpc, topic=TOPIC, group=GROUP)
    async with load.running(producers=2, consumers=2):
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.5, 2.5))
            victim = chance.choice(servers.mortal)
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(chance.uniform(0, 0.3))
            await asyncio.to_thread(victim.start)
        await asyncio.sleep(1)
    await load.drain(90)
    print(f"kills={kills} sent={len(load.sent)} done={len(load.done)} failures={load.failures}")
    load.judge()
    return load


@pytest.mark.parametrize("is_apart", [False, True], ids=["in the broker", "apart"])
async def test_acknowledged_messages_come_and_acknowledged_receipts_stay_away(
    tmp_path: Path, seed: int, rounds: int, is_apart: bool
) -> None:
    kills = max(4, rounds // 4)
    with Servers(tmp_path, is_apart=is_apart) as servers:
        load = await _campaign(servers, random.Random(seed), kills)
    assert len(load.sent) > 20 * kills
    assert load.failures >= kills


async def test_a_killed_leader_behind_a_proxy_loses_nothing(tmp_path: Path, rounds: int) -> None:
    """Each kill of a group's leader makes another member the leader; the proxy follows."""
    kills = max(3, rounds // 10)
    async with up_group(tmp_path / "group") as group:
        port = free_port()
        settings = tmp_path / "rmq-proxy.json"
        settings.write_text(json.dumps({"grpcServerPort": port, **QUICK}))
        words = ["mqproxy", "-n", group.address, "-pc", str(settings)]
        with ServerProcess(words, ready=r"boot success"):
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            async with AdminClient(name_servers=group.address) as admin:
                leader = group.client_address(await group.leader())
                await admin.topics.create(leader, config)
            load = GrpcLoad(port, topic=TOPIC, group=GROUP)
            async with load.running(producers=2, consumers=2):
                for _ in range(kills):
                    await _kill_leader(group, load)
            await load.drain(90)
    print(f"kills={kills} sent={len(load.sent)} done={len(load.done)} failures={load.failures}")
    load.judge()
    assert len(load.sent) > 20 * kills
    assert load.failures >= kills


async def _kill_leader(group: UpGroup, load: GrpcLoad) -> None:
    """Kill the leader under load; return when the group works and the member is back."""
    leader = await group.leader()
    await asyncio.sleep(1)
    await group.kill(leader)
    sent = len(load.sent)
    async with asyncio.timeout(OUTAGE_SECONDS_MAX):
        while len(load.sent) < sent + 20:
            await asyncio.sleep(0.05)
    await group.wait_restarted(leader)


@pytest.mark.parametrize(
    ("bug", "symptom"),
    [("answers_before_sending", "did not come"), ("forgets_receipts", "came again")],
)
async def test_planted_bugs_show(tmp_path: Path, seed: int, bug: str, symptom: str) -> None:
    program = [*ODD, bug]
    with (
        Servers(tmp_path, is_apart=False, program=program) as servers,
        pytest.raises(PromiseBroken, match=symptom),
    ):
        await _campaign(servers, random.Random(seed), 1)
