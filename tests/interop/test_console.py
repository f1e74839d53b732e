"""The console in Chromium against Apache's broker: the first six of its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration import console_runs as runs
from integration.console_client import run_console
from interop.servers import SMALL_STORE, Cluster

pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(runs.CHROMIUM is None, reason=runs.NO_CHROMIUM),
]


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with runs.run_chromium() as running:
        yield running


@pytest.mark.usefixtures("java")
async def test_the_console_of_an_apache_broker(tmp_path: Path, browser: Any) -> None:
    settings = {**SMALL_STORE, "autoCreateTopicEnable": "true"}
    with (
        Cluster(tmp_path / "cluster", "apache", settings=settings) as cluster,
        run_console(cluster.namesrv, tmp_path / "state") as console,
    ):
        await runs.refuse_strangers(console, browser)
        state = await runs.make_user(console, browser)
        await runs.refuse_foreign_pages(console, browser, state)
        await runs.reset_as_shown(console, browser, state, cluster.namesrv, "Reset")
        await runs.count_exactly(console, browser, state, cluster.namesrv, "Counted")
        assert cluster.broker_server is not None
        kill = cluster.broker_server.kill
        await runs.notice_a_kill(console, browser, state, kill, seconds=30)
