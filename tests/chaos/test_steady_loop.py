"""The loop of a campaign leaves out the time in which its machine stood still."""

from __future__ import annotations

import asyncio
import time

import pytest

from chaos.group.steady_loop import STILL_SECONDS, SteadyLoop


def test_time_does_not_pass_while_the_process_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    real, still = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + still)

    async def main() -> None:
        nonlocal still
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteadyLoop)
        began = loop.time()
        async with asyncio.timeout(30):
            still = 60.0
            await asyncio.sleep(0.01)  # time for the loop to notice it, and to go on
            assert loop.time() - began < STILL_SECONDS
        assert loop.still_seconds == pytest.approx(60, abs=STILL_SECONDS)

    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        runner.run(main())
