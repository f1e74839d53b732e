"""Twenty tabs for twenty minutes, while messages flow: the console does not grow.

``SOAK_SECONDS`` sets another time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import Message, Producer
from rocketpost.testing.cluster import Cluster

from . import console_runs as runs
from .console_client import run_console
from .test_console_scale import memory_of, times_of

pytest.importorskip("playwright.async_api", reason="playwright is not installed")
SECONDS = int(os.environ.get("SOAK_SECONDS", "1200"))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(SECONDS + 300),
    pytest.mark.skipif(runs.CHROMIUM is None, reason=runs.NO_CHROMIUM),
]

PATHS = (
    "/", "/topics", "/topics/Orders", "/groups", "/groups/billing", "/dead-letters", "/timers",
    "/messages?topic=Orders&by=tail", "/clients", "/brokers", "/brokers/broker-0",
    "/name-servers", "/jobs",
)  # fmt: skip
TABS = 20
GROWTH_MB_MAX = 3.0


async def test_tabs_do_not_make_it_grow(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        handled: list[bytes] = []
        await runs.send(cluster.addresses, "Orders", 1)
        consumer = runs.make_consumer(cluster.addresses, "Orders", "billing", handled)
        async with (
            consumer,
            Producer("shop", name_servers=cluster.addresses) as producer,
            runs.run_chromium() as browser,
        ):
            state = await runs.make_user(console, browser)
            context = await runs.open_context(browser, storage_state=state)
            problems: list[str] = []
            refreshed: Counter[int] = Counter()
            for number in range(TABS):
                page = await context.new_page()
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.on("requestfinished", partial(count_refresh, refreshed, number))
                await page.goto(console.url + PATHS[number % len(PATHS)])
            pid = console.process.pid
            samples: list[tuple[float, float]] = []
            began, before = time.monotonic(), times_of(pid)
            while (age := time.monotonic() - began) < SECONDS:
                for _ in range(10):
                    await producer.send(Message("Orders", b"x" * 200, tags="paid"))
                handled.clear()
                samples.append((age, memory_of(pid)))
                await keep_session(context, console.url)
                await asyncio.sleep(2)
            share = (times_of(pid) - before) / (time.monotonic() - began)
        assert problems == []
        print(f"{refreshed.total():,} refreshes, at least {min(refreshed.values())} of each tab")
        assert len(refreshed) == TABS  # tabs that do not ask cost nothing
        assert min(refreshed.values()) > 1
        report(samples, share)


def count_refresh(counts: Counter[int], tab: int, request: Any) -> None:
    if "x-refresh" in request.headers:
        counts[tab] += 1


async def keep_session(context: Any, url: str) -> None:
    """Be there: tabs that refresh themselves do not prolong a session."""
    answer = await context.request.get(url + "/settings")
    assert answer.status == 200


def report(samples: list[tuple[float, float]], share: float) -> None:
    """Compare the second and the last quarter; the first one fills caches and rings."""
    quarter = len(samples) // 4
    parts = [samples[index * quarter : (index + 1) * quarter] for index in range(4)]
    means = [sum(value for _, value in part) / len(part) for part in parts]
    hours = (parts[3][0][0] - parts[1][0][0]) / 3600
    slope = (means[3] - means[1]) / hours
    print(f"memory by quarters: {', '.join(f'{mean:.1f}' for mean in means)} MB; "
          f"slope {slope:+.1f} MB/h; {share:.1%} of a core")  # fmt: skip
    assert means[3] - means[1] < GROWTH_MB_MAX
