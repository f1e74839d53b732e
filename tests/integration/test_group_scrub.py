"""Old log is compared between members; damage is repaired from a majority, and from nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.server.group.life import log_scrub
from rocketpost.server.group.life.log_scrub import Block, LogScrub
from rocketpost.store.integrity.damage import BAD_BODY, Damage
from rocketpost.testing.waiting import until

from .group_brokers import NODES, Group, group_of_three
from .test_group_damage import fill, until_equal

AT = 300_000
"""A position in the second block of the log."""


def flip(group: Group, root: Path, node: str, *, mask: int = 1, at: int = AT) -> bytes:
    """Flip bits of a running member's log; returns its block as it was before."""
    block = group.member(node).scrub._block_at(at - at % log_scrub.BLOCK_BYTES, 2**40)
    path = root / node / "commitlog" / f"{0:020}"
    with path.open("r+b") as file:
        before = path.read_bytes()[block.begin : block.end]
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ mask]))
    return before


def block_of(root: Path, node: str, block: Block) -> bytes:
    return (root / node / "commitlog" / f"{0:020}").read_bytes()[block.begin : block.end]


async def fill_all(group: Group) -> None:
    """Write log, and wait until all members may compare the block with the flipped byte."""
    await fill(group, 8)
    await until_equal(group)
    for node in NODES:
        await until_comparable(group, node)


async def until_comparable(group: Group, node: str) -> None:
    """Wait until a member has the block; followers commit and flush later than the leader."""
    member = group.member(node)
    end = AT + log_scrub.BLOCK_BYTES
    await until(lambda: min(member.node.commit, member.scrub._written) >= end, seconds=15)


async def until_repaired(scrub: LogScrub) -> None:
    await until(lambda: scrub.repaired_count == 1, seconds=15)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scrub, "_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("hurried")
async def test_a_flipped_bit_is_repaired_on_any_member(tmp_path: Path) -> None:
    async with group_of_three(tmp_path, scrubCommitLogBytesPerSecond=2**30) as group:
        await fill_all(group)
        for node in NODES:
            scrub = group.member(node).scrub
            before = flip(group, tmp_path, node)
            scrub.begin_round()
            await until_repaired(scrub)
            block = scrub._block_at(AT - AT % log_scrub.BLOCK_BYTES, 2**40)
            assert block_of(tmp_path, node, block) == before
            assert "1 blocks repaired" in group.member(node).member_status().scrub
        await group.check()


async def test_without_a_majority_nothing_is_changed(tmp_path: Path) -> None:
    async with group_of_three(tmp_path, scrubCommitLogEnable="false") as group:
        await fill_all(group)
        one, two, three = (group.member(node) for node in NODES)
        flip(group, tmp_path, "n0", mask=1)
        flip(group, tmp_path, "n1", mask=2)
        block = one.scrub._block_at(AT - AT % log_scrub.BLOCK_BYTES, 2**40)
        logs = {node: block_of(tmp_path, node, block) for node in NODES}
        for member in (one, two, three):
            assert not await member.scrub.compare(block)
            assert "1 blocks differ without a majority" in member.scrub.describe()
        assert {node: block_of(tmp_path, node, block) for node in NODES} == logs
        flip(group, tmp_path, "n1", mask=2)
        assert await two.scrub.compare(block), "two members agree again"
        assert await one.scrub.compare(block)
        assert one.scrub.repaired_count == 1
        assert block_of(tmp_path, "n0", block) == logs["n2"]


async def test_a_minority_is_never_copied(tmp_path: Path) -> None:
    """Two members that agree on nothing but the wrong bytes of one of them change nothing."""
    async with group_of_three(tmp_path, scrubCommitLogEnable="false") as group:
        await fill_all(group)
        leader = await group.leader()
        sound, gone = (node for node in NODES if node != leader)
        block = group.member(sound).scrub._block_at(AT - AT % log_scrub.BLOCK_BYTES, 2**40)
        await group.stop([gone])
        flip(group, tmp_path, leader)
        before = block_of(tmp_path, sound, block)
        assert not await group.member(sound).scrub.compare(block)
        assert block_of(tmp_path, sound, block) == before
        await group.start([gone])
        await until(lambda: group.member(leader).links.is_up(gone))
        await until(lambda: group.member(gone).links.is_up(leader))  # for its answers
        await until_comparable(group, gone)
        async with asyncio.timeout(15):
            while not await group.member(leader).scrub.compare(block):
                await asyncio.sleep(0.05)
        assert block_of(tmp_path, leader, block) == before


@pytest.mark.usefixtures("hurried")
async def test_blocks_without_a_majority_are_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member is away while damage is found: it is repaired once that member is back."""
    monkeypatch.setattr(log_scrub, "_AGAIN_SECONDS", 0.05)
    async with group_of_three(tmp_path, scrubCommitLogBytesPerSecond=2**30) as group:
        await fill_all(group)
        leader = await group.leader()
        damaged, gone = (node for node in NODES if node != leader)
        await group.stop([gone])
        before = flip(group, tmp_path, damaged)
        scrub = group.member(damaged).scrub
        scrub.begin_round()
        await until(lambda: "differ without a majority" in scrub.describe(), seconds=15)
        await group.start([gone])
        await until_repaired(scrub)
        block = scrub._block_at(AT - AT % log_scrub.BLOCK_BYTES, 2**40)
        assert block_of(tmp_path, damaged, block) == before
        assert "without a majority" not in scrub.describe()


@pytest.mark.usefixtures("hurried")
async def test_damage_that_a_read_has_found_is_repaired_first(tmp_path: Path) -> None:
    settings = {"scrubCommitLogBytesPerSecond": 2**30}
    async with group_of_three(tmp_path, **settings) as group:
        await fill_all(group)
        leader = await group.leader()
        store = group.servers[leader]._context.store
        queue = store.queue("T", 0)
        assert queue is not None
        position, size, _ = queue.entry(2) or (0, 0, 0)
        flip(group, tmp_path, leader, at=position + size // 2)
        store.damage.report_from_thread(Damage(position, position + size, BAD_BODY, "T", 0, 2))
        await until(lambda: not store.damage.all(), seconds=15)
        assert group.member(leader).scrub.repaired_count >= 1
        await group.check()
