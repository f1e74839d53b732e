"""Delayed messages of brokers that are killed, lose power or find the disk full while delivering.

A message counts once it is acknowledged and, under ASYNC_FLUSH, had the time to reach the disk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from chaos.odd import odd_campaign
from chaos.volatile_disk import cut_power, is_supported
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import Record
from rocketpost.testing.campaign import Campaign
from rocketpost.testing.link import BrokerLink, SendPart

SECONDS = 3
SETTINGS = {
    "messageDelayLevel": f"{SECONDS}s {SECONDS}s",
    # Messages are on disk before they are due; when power goes right after their delivery, the
    # copies are not, while the progress was saved several times.
    "flushIntervalCommitLog": "2000",
    "flushIntervalConsumeQueue": "60000",
    "flushDelayOffsetInterval": "50",
}


async def send(address: str, prefix: str, count: int) -> list[str]:
    """Send delayed messages on both levels; returns the keys of those that were taken."""
    link = await BrokerLink.connect(address)
    keys = [f"{prefix}N{number}" for number in range(count)]
    answers = [
        link.send("T", 0, [SendPart(b"body", {"UNIQ_KEY": key, "DELAY": str(1 + number % 2)})])
        for number, key in enumerate(keys)
    ]
    taken = [
        key
        for key, answer in zip(keys, await asyncio.gather(*answers), strict=True)
        if answer.code == ResponseCode.SUCCESS
    ]
    link.close()
    return taken


async def delivered(address: str) -> list[Record]:
    link = await BrokerLink.connect(address)
    try:
        first, end = await link.min_offset("T", 0), await link.max_offset("T", 0)
        return await link.read("T", 0, first, end)
    finally:
        link.close()


async def check(campaign: Campaign, sent: set[str]) -> Counter[str]:
    """Wait until everything sent was delivered at some time; returns how often each was."""
    counts: Counter[str] = Counter()
    try:
        async with asyncio.timeout(30):
            while True:
                records = await delivered(campaign.address)
                counts = Counter(record.properties["UNIQ_KEY"] for record in records)
                if counts.keys() >= sent:
                    break
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"lost: {sorted(sent - counts.keys())[:5]} of {len(sent)}")
    early = [record for record in records if record.store_ms - record.born_ms < 1000 * SECONDS]
    assert not early
    return counts


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_power_cut_while_delivering(
    tmp_path: Path, seed: int, rounds: int, flush: str
) -> None:
    """No delayed message is lost with its copy: what is saved as delivered is on the disk."""
    if not is_supported(tmp_path):
        pytest.skip("the file system of the temporary directory has no extended attributes")
    rng = random.Random(seed)
    campaign = odd_campaign(tmp_path, seed=seed, flush=flush, loses_power=True, settings=SETTINGS)
    sent: set[str] = set()
    with campaign.broker as broker:
        for number in range(max(1, rounds // 10)):
            sent |= set(await send(campaign.address, f"R{number}", 200))
            await asyncio.sleep(SECONDS + rng.uniform(-0.1, 0.6))
            broker.kill()
            cut_power(tmp_path / "store", tmp_path / "mirror", rng)
            await asyncio.to_thread(broker.start)
        counts = await check(campaign, sent)
    # Copies that the power cut took do not count here; a consumer may have seen them.
    twice = sum(count - 1 for count in counts.values())
    print(f"sent={len(sent)} twice_on_disk={twice}")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kill_while_the_disk_is_full_now_and_then(
    tmp_path: Path, seed: int, rounds: int, flush: str
) -> None:
    """Messages that could not be stored are kept; a killed process delivers nothing twice."""
    rng = random.Random(seed)
    campaign = odd_campaign(tmp_path, seed=seed, flush=flush, full_every=40, settings=SETTINGS)
    sent: set[str] = set()
    with campaign.broker as broker:
        for number in range(max(1, rounds // 10)):
            for part in range(20):
                sent |= set(await send(campaign.address, f"R{number}P{part}", 10))
            await asyncio.sleep(SECONDS + rng.uniform(-0.3, 0.4))
            broker.kill()
            await asyncio.to_thread(broker.start)
        counts = await check(campaign, sent)
    assert len(sent) > rounds
    assert max(counts.values()) == 1
