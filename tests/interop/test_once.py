"""Java's retries are stored once where a topic asks; a visit of Apache's broker changes nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from interop.conftest import QUICK_ANSWERS, SMALL_STORE
from interop.peer import Peer, named
from interop.servers import Cluster, Maker
from rocketpost.client import Message
from rocketpost.client.blocking import Producer
from rocketpost.testing.fault_proxy import NONE, FaultProxy, InjectedFault
from rocketpost.testing.link import BrokerLink, SendPart

pytestmark = pytest.mark.interop

TOLD_ADDRESS = "127.0.0.9"
"""The address that clients get; a proxy listens there."""


class LosesFirstAnswers(threading.Thread):
    """A proxy before a broker that swallows answers until a message is stored, then cuts."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._topic = topic
        self._ended = threading.Event()
        self.is_ready = threading.Event()
        self.connection_count = 0

    def run(self) -> None:
        asyncio.run(self._run())

    def end(self) -> None:
        self._ended.set()
        self.join()

    async def _run(self) -> None:
        port = self._cluster.broker_port
        async with FaultProxy(("127.0.0.1", port), listen=(TOLD_ADDRESS, port)) as proxy:
            proxy.fault = InjectedFault(swallow_answers=True)
            self.is_ready.set()
            link = await BrokerLink.connect(self._cluster.broker)
            while await stored_in(link, self._topic) == 0 and not self._ended.is_set():
                await asyncio.sleep(0.05)
            link.close()
            await asyncio.sleep(0.3)
            proxy.fault = NONE
            await proxy.cut()
            while not self._ended.is_set():
                await asyncio.sleep(0.05)
            self.connection_count = proxy.connection_count


async def stored_in(link: BrokerLink, topic: str) -> int:
    return sum([await link.max_offset(topic, queue_id) for queue_id in range(4)])


@pytest.mark.parametrize("dedup", [True, False])
def test_a_retry_of_java_is_stored_once(
    peer: Peer, target: Maker, tmp_path: Path, dedup: bool
) -> None:
    if peer.version == "4.9":
        pytest.skip("this release waits out its whole time-out on a lost connection, and gives up")
    if target == "apache" and dedup:
        pytest.skip("Apache's broker has no such attribute")
    settings = {**SMALL_STORE, **QUICK_ANSWERS, "brokerIP1": TOLD_ADDRESS, "bindAddress": "0.0.0.0"}
    if target == "rocketpost":
        settings["bindAddress"] = "127.0.0.1"  # the proxy has the same port elsewhere
    with Cluster(tmp_path, target, settings=settings) as cluster:

        async def create() -> None:
            link = await BrokerLink.connect(cluster.broker)
            attributes = "+dedup.seconds=600" if dedup else None
            await link.create_topic("Orders", 4, attributes=attributes)
            link.close()

        async def count() -> int:
            link = await BrokerLink.connect(cluster.broker)
            try:
                return await stored_in(link, "Orders")
            finally:
                link.close()

        asyncio.run(create())
        proxy = LosesFirstAnswers(cluster, "Orders")
        proxy.start()
        proxy.is_ready.wait()
        try:
            sent = named(peer.run("send", namesrv=cluster.namesrv, topic="Orders", count=1), "sent")
        finally:
            proxy.end()
        assert [one["status"] for one in sent] == ["SEND_OK"]
        assert proxy.connection_count > 1
        stored = asyncio.run(count())
        assert stored == 1 if dedup else stored > 1
        if dedup:
            assert sent[0]["queueOffset"] == 0


def test_numbers_outlive_a_visit_of_apaches_broker(java: None, tmp_path: Path) -> None:
    settings = {**SMALL_STORE, **QUICK_ANSWERS}
    with Cluster(tmp_path, "rocketpost", settings=settings) as cluster:

        def run(count: int) -> list[bool]:
            with Producer(
                "job", name_servers=cluster.namesrv, idempotent=True, producer_id="job/1"
            ) as producer:
                return [
                    producer.send(Message("Orders", b"%d" % n), sequence=n, timeout=10).duplicate
                    for n in range(count)
                ]

        async def send_plainly() -> None:
            link = await BrokerLink.connect(cluster.broker)
            for n in range(20):
                (
                    await link.send("Orders", 0, [SendPart(b"plain", {"UNIQ_KEY": f"P{n}"})])
                ).raise_for_code()
            link.close()

        assert run(10) == [False] * 10
        cluster.stop_broker()
        cluster.start_broker("apache")
        asyncio.run(send_plainly())
        cluster.stop_broker()
        cluster.start_broker("rocketpost")
        assert run(15) == [True] * 10 + [False] * 5
        cluster.kill_broker()
        cluster.start_broker("apache")
        asyncio.run(send_plainly())
        cluster.kill_broker()
        cluster.start_broker("rocketpost")
        assert run(15) == [True] * 15
