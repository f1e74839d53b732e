"""The example of a failover, run as a user would run it, with a leader that is killed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from .up_group import up_group

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "failover.py"
SECONDS = "4"


async def test_the_example_lives_through_a_kill_of_the_leader(tmp_path: Path) -> None:
    async with up_group(tmp_path) as group:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", str(EXAMPLE), SECONDS,
            env={**os.environ, "NAMESRV_ADDR": group.address},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert b"kill the leader" in await process.stdout.readline()
        await group.kill(await group.leader())
        printed = (await process.stdout.read()).decode()
        assert await process.wait() == 0, printed
    found = re.search(r"(\d+) acknowledged, all of them handled, (\d+) handled again", printed)
    assert found is not None, printed
    assert int(found[1]) > 10
    assert "for a leader" in printed
