"""Sends that threads hand over to the event loop: who waits for whom."""

from __future__ import annotations

import asyncio

from rocketpost.client.message import SendResult
from rocketpost.client.producer.handover import SLICE, Handover


async def test_whoever_waits_for_what_was_handed_over_does_not_wait_for_later_sends() -> None:
    loop = asyncio.get_running_loop()
    handover = Handover(loop, count_max=1000, bytes_max=1000)
    started = 0

    async def start() -> asyncio.Future[SendResult]:
        nonlocal started
        started += 1
        if not handover._closed:
            handover.put_from_thread(start, 1)  # so there is always one more
        await asyncio.sleep(0)
        return loop.create_future()

    for _ in range(3):
        handover.put_from_thread(start, 1)
    await asyncio.wait_for(handover.wait_drained(), 5)
    assert 3 <= started <= 3 + 2 * SLICE
    await asyncio.wait_for(handover.close(), 5)
    assert handover.is_idle
    await handover.wait_drained()
