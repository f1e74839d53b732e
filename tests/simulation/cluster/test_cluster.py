"""The simulated cluster: real servers and clients in virtual time, the same from the same seed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
import uuid
import weakref
from pathlib import Path

import pytest

from rocketpost.client import Message, ReceivedMessage
from rocketpost.testing import SimulatedCluster
from rocketpost.testing.sim.loop import StuckError

pytestmark = pytest.mark.slow

HERE = Path(__file__)


async def exchange(cluster: SimulatedCluster, count: int, topic: str = "Orders") -> list[bytes]:
    """Send messages and return them as a consumer got them."""
    got: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)
        if len(set(got)) == count:
            done.set()

    consumer = cluster.consumer()
    consumer.subscribe(topic, handle)
    async with cluster.producer() as producer, consumer:
        for number in range(count):
            await producer.send(Message(topic, b"order %d" % number))
        await done.wait()
    return got


def fingerprint(nodes: int, seed: int) -> str:
    with SimulatedCluster(nodes=nodes, seed=seed) as cluster:
        cluster.run(exchange(cluster, 30))
        cluster.run_for(30)
        cluster.power_cut()
        cluster.start()
        cluster.run(cluster.ready())
        return cluster.fingerprint()


@pytest.mark.parametrize("nodes", [1, 3])
def test_messages_arrive(nodes: int) -> None:
    with SimulatedCluster(nodes=nodes, seed=7) as cluster:
        got = cluster.run(exchange(cluster, 50))
    assert sorted(got) == sorted(b"order %d" % number for number in range(50))


def test_nothing_of_killed_brokers_stays_in_memory() -> None:
    brokers: weakref.WeakSet[object] = weakref.WeakSet()
    with SimulatedCluster(nodes=3, seed=7) as cluster:
        for _ in range(2):
            cluster.run(cluster.ready())
            brokers.update(cluster.brokers.values())
            cluster.kill(cluster.leader() or "n0")
            cluster.start()
    del cluster
    gc.collect()
    assert not list(brokers)


def test_a_closed_cluster_goes_when_the_next_one_starts() -> None:
    class Campaign:
        def __init__(self) -> None:
            self.cluster = SimulatedCluster(seed=7)
            self.run = self.use  # a cycle, which only the garbage collector frees

        def use(self) -> None:
            with self.cluster as cluster:
                cluster.run(cluster.ready())

    campaign = Campaign()
    campaign.run()
    closed = weakref.ref(campaign.cluster)
    del campaign
    with SimulatedCluster(seed=8):
        assert closed() is None


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        "from simulation.cluster.test_cluster import fingerprint as f; print(f(3, 7))",
        "from simulation.cluster.campaigns import CalmCampaign as C; print(C(0).run(rounds=1))",
    ],
    ids=["plain messages", "a campaign"],
)
def test_another_process_with_another_order_of_sets_gives_the_same_bytes(code: str) -> None:
    found = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(HERE.parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout.strip())
    assert len(found) == 1


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_same_seed_gives_the_same_bytes_in_every_file(nodes: int) -> None:
    first = fingerprint(nodes, 7)
    assert fingerprint(nodes, 7) == first
    assert fingerprint(nodes, 8) != first


def test_ten_minutes_take_little_time() -> None:
    began = time.monotonic()
    with SimulatedCluster(nodes=3, seed=1) as cluster:
        start = cluster.now
        cluster.run_for(600)
        assert cluster.now - start >= 600
    assert time.monotonic() - began < 600 / 10  # five times more than on a busy machine


def test_code_under_test_sees_virtual_time_and_seeded_chance() -> None:
    def look(seed: int) -> tuple[float, str]:
        with SimulatedCluster(seed=seed) as cluster:

            async def main() -> tuple[float, str]:
                before = time.time()
                await asyncio.sleep(600)
                return time.time() - before, str(uuid.uuid4())

            return cluster.run(main())

    before = time.time
    first = look(1)
    assert look(1) == first
    assert first[0] == pytest.approx(600)
    assert first[1] != look(2)[1]
    assert time.time is before


def test_a_plain_handler_that_sleeps_takes_virtual_time() -> None:
    with SimulatedCluster(seed=3) as cluster:
        times: list[float] = []

        def handle(message: ReceivedMessage) -> None:
            time.sleep(60)
            times.append(time.monotonic())

        async def main() -> float:
            consumer = cluster.consumer()
            consumer.subscribe("T", handle)
            async with cluster.producer() as producer, consumer:
                began = time.monotonic()
                await producer.send(Message("T", b"slow"))
                while not times:
                    await asyncio.sleep(1)
                return times[0] - began

        assert 60 <= cluster.run(main()) < 120


def test_a_consumer_that_is_killed_gets_its_messages_again() -> None:
    with SimulatedCluster(seed=5) as cluster:
        runs: list[list[bytes]] = []
        finished = []

        async def worker() -> None:
            got: list[bytes] = []
            runs.append(got)

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)
                try:
                    await asyncio.sleep(1)
                    if len(runs) == 1:
                        await asyncio.sleep(10_000)
                finally:
                    finished.append(message.body)

            consumer = cluster.consumer("workers")
            consumer.subscribe("Jobs", handle)
            async with consumer:
                await asyncio.Event().wait()

        async def main() -> None:
            async with cluster.producer() as producer:
                await producer.send(Message("Jobs", b"job"))
            cluster.spawn("worker", worker)
            await asyncio.sleep(120)
            assert runs == [[b"job"]]
            cluster.kill("worker")
            assert finished == []  # nothing of a killed process runs, not even this
            cluster.start("worker")
            await asyncio.sleep(120)

        cluster.run(main())
        assert runs == [[b"job"], [b"job"]]


def test_an_acknowledged_message_survives_a_power_cut() -> None:
    with SimulatedCluster(seed=11, settings={"flushDiskType": "SYNC_FLUSH"}) as cluster:

        async def send() -> None:
            async with cluster.producer() as producer:
                for number in range(20):
                    await producer.send(Message("Orders", b"order %d" % number))

        cluster.run(send())
        cluster.power_cut("n0")
        assert cluster.leader() is None
        cluster.start("n0")
        cluster.run(cluster.ready())
        got = cluster.run(exchange(cluster, 20))
        assert set(got) == {b"order %d" % number for number in range(20)}


def test_another_member_leads_when_the_leader_is_cut_off() -> None:
    with SimulatedCluster(nodes=3, seed=2) as cluster:
        first = cluster.leader()
        assert first is not None
        cluster.partition(first)
        cluster.run_for(10)
        second = cluster.leader()
        assert second not in (None, first)
        got = cluster.run(exchange(cluster, 10))
        assert len(set(got)) == 10
        cluster.heal()
        cluster.run_for(10)
        assert cluster.leader() == second


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_producer_that_starts_without_a_leader_waits_for_one(is_idempotent: bool) -> None:
    with SimulatedCluster(nodes=3, seed=3) as cluster:

        async def main() -> None:
            async with cluster.producer("before") as producer:
                await producer.send(Message("Orders", b"before"))
            leader = cluster.leader()
            assert leader is not None
            cluster.kill(leader)
            async with cluster.producer("after", idempotent=is_idempotent) as producer:
                assert cluster.leader() is None
                await producer.send(Message("Orders", b"after"))
            assert cluster.leader() is not None

        cluster.run(main())


def test_a_wait_for_something_that_never_comes_is_an_error() -> None:
    cluster = SimulatedCluster(nodes=1, seed=1)
    with cluster:
        cluster.kill("n0", "ns")
        with pytest.raises(StuckError):
            cluster.run(asyncio.Event().wait())


def test_an_unknown_machine_is_named_in_the_error() -> None:
    with SimulatedCluster() as cluster, pytest.raises(ValueError, match="no machine 'n7'; there"):
        cluster.kill("n7")


def test_two_simulations_cannot_be_open_at_once() -> None:
    with (
        SimulatedCluster(),
        pytest.raises(RuntimeError, match="another simulation is open"),
        SimulatedCluster(),
    ):
        pass
