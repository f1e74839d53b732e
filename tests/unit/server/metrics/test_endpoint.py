from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketpost.server.metrics.endpoint import MetricsEndpoint, Readiness


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: broker\r\n\r\n" % path.encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(("step", "turns"), [(0.001, 10), (0.0, 0)])
async def test_the_loop_serves_requests_while_a_long_text_is_written(
    step: float, turns: int
) -> None:
    now = 0.0
    taken: list[int] = []

    def slices(is_open: bool) -> Iterator[bytes]:
        nonlocal now
        loop = asyncio.get_running_loop()
        for number in range(10):
            now += step
            before = len(taken)
            loop.call_soon(taken.append, number)
            yield b"%d\n" % number
            gaps.append(len(taken) - before)

    gaps: list[int] = []
    endpoint = MetricsEndpoint(slices=slices, readiness=lambda: Readiness([]), now=lambda: now)
    await endpoint.start("127.0.0.1", 0)
    try:
        answer = await get(endpoint.port, "/metrics")
    finally:
        await endpoint.stop()
    assert answer.endswith(b"".join(b"%d\n" % number for number in range(10)))
    assert sum(gaps) == turns
