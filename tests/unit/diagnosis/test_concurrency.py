from __future__ import annotations

import asyncio

from rocketpost.diagnosis.concurrency import map_concurrently


def test_work_is_done_a_few_at_a_time_and_in_order() -> None:
    running, most = 0, 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return item * 2

    assert asyncio.run(map_concurrently(range(50), work)) == [item * 2 for item in range(50)]
    assert 1 < most <= 16
