"""A broker that stands still for a while (SIGSTOP): slow, but not wrong."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer, ProducerConfig, RocketpostError, SendStatus
from rocketpost.testing.campaign import STABLE, Campaign
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import Reader, Stream

PAUSES = 8


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_pauses_under_load(tmp_path: Path, seed: int, flush: str) -> None:
    """Connections outlive the pauses; nothing is lost, nothing comes twice, order holds."""
    rng = random.Random(seed)
    with Campaign(tmp_path, seed=seed, settings={"flushDiskType": flush}) as campaign:
        campaign.broker.start()
        links = [await BrokerLink.connect(campaign.address) for _ in range(3)]
        for topic in dict.fromkeys(queue.topic for queue in STABLE):
            await links[0].create_topic(topic, 3)
        reader = Reader(campaign.ledger)
        streams = [
            Stream(link, campaign.ledger, number, rng=random.Random(rng.random()))
            for number, link in enumerate(links[1:])
        ]
        work = [
            asyncio.create_task(reader.run(links[0], STABLE)),
            *(asyncio.create_task(stream.run(STABLE)) for stream in streams),
        ]
        for _ in range(PAUSES):
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            campaign.broker.pause()
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            campaign.broker.resume()
        for sender in work[1:]:
            sender.cancel()
        await asyncio.wait(work[1:])
        for stream in streams:
            await stream.settle()
        assert all(link.is_open for link in links)
        for queue in STABLE:
            end = await links[0].max_offset(*queue)
            records = await links[0].read(*queue, 0, end)
            campaign.ledger.check_queue(*queue, records, first=0)
        campaign.ledger.check_lost()
        campaign.ledger.verify()
        assert campaign.ledger.counts.acknowledged > PAUSES
        for link in links:
            link.close()
        await asyncio.wait(work)


async def test_a_producer_survives_a_long_pause(tmp_path: Path) -> None:
    """Sends fail while the broker stands still, each in its time, and succeed afterwards."""
    with Cluster(tmp_path, settings={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        config = ProducerConfig(
            name_servers=cluster.addresses, send_timeout=1.0, attempt_timeout=0.4
        )
        async with Producer("pause", config=config) as producer:
            await producer.send(Message("pause", b"before"), timeout=10)
            cluster.brokers[0].pause()
            began = asyncio.get_running_loop().time()
            with pytest.raises(RocketpostError):
                await producer.send(Message("pause", b"meanwhile"))
            assert asyncio.get_running_loop().time() - began < 5
            cluster.brokers[0].resume()
            async with asyncio.timeout(10):
                result = await producer.send(Message("pause", b"after"), timeout=10)
            assert result.status is SendStatus.SEND_OK
