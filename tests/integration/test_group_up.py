"""``rocketpost up --nodes 3``: one command, three members, and the leader is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.client.admin import AdminClient

from .up_group import live_through_kills, up_group

pytestmark = pytest.mark.slow


async def test_a_group_on_one_machine_survives_the_kill_of_its_leader(tmp_path: Path) -> None:
    async with up_group(tmp_path) as group:
        async with AdminClient(name_servers=group.address) as admin:
            info = await admin.cluster.info()
            assert len(info.broker_addr_table["broker-a"].broker_addrs) == 3
        times = await live_through_kills(group, 1)
        assert len(times) == 1
        assert await asyncio.to_thread(group.server.stop) == 0
    assert sum("stopped: clean=true" in line for line in group.server.output) >= 3
