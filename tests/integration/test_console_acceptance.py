"""The console in Chromium against our servers: the runs that every make passes, and more.

``AXE_CORE`` names the directory of axe-core, if it is to be used; our own checks always run.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import Message, Producer
from rocketpost.testing.cluster import Cluster

from . import console_runs as runs
from .console_client import Console, run_console
from .test_console_dead_letters import copies_of, make_dead
from .test_console_scale import memory_of

pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(runs.CHROMIUM is None, reason=runs.NO_CHROMIUM),
]


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with runs.run_chromium() as running:
        yield running


async def test_strangers_and_foreign_pages_are_kept_out(tmp_path: Path, browser: Any) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        await runs.refuse_strangers(console, browser)
        state = await runs.make_user(console, browser)
        await runs.refuse_strangers(console, browser)
        await runs.refuse_foreign_pages(console, browser, state)


async def test_numbers_are_true(tmp_path: Path, browser: Any) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        state = await runs.make_user(console, browser)
        await runs.reset_as_shown(console, browser, state, cluster.addresses, "Reset")
        await runs.count_exactly(console, browser, state, cluster.addresses, "Counted")
        kill = cluster.brokers[0].kill
        await runs.notice_a_kill(console, browser, state, kill, seconds=15)


@pytest.mark.timeout(600)
async def test_ten_thousand_dead_letters_are_sent_again_once(tmp_path: Path, browser: Any) -> None:
    count = 10_000
    with Cluster(tmp_path / "cluster") as cluster:
        await make_dead(cluster, "Billed", "billing", count)
        with run_console(cluster.addresses, tmp_path / "state") as console:
            state = await runs.make_user(console, browser)
            context = await runs.open_context(browser, storage_state=state)
            page = await context.new_page()
            await page.goto(console.url + "/dead-letters/billing")
            assert "10,000 letters match" in await page.inner_text("#count")
            await page.click("text=Resend these")
            await page.fill("#rate", "2000")
            await page.click("form.act button")
            await page.wait_for_selector("table.preview", timeout=120_000)
            assert "10,000 messages in all" in await page.inner_text("main")
            await page.fill("#typed", "billing")
            await page.click("button.danger")
            await page.wait_for_selector("#stop")
            path = page.url.removeprefix(console.url)
            job: dict[str, Any] = {"counts": {}}
            while job["counts"].get("sent", 0) < count // 3:
                job = await (await page.request.get(console.url + path + ".json")).json()
            console.process.kill()
        with run_console(cluster.addresses, tmp_path / "state") as console:
            page = await (await runs.open_context(browser)).new_page()
            await log_in(page, console)
            await page.goto(console.url + path)
            assert "interrupted" in await page.inner_text("#state")
            await page.click("#resume")
            await page.wait_for_selector("text=running")
            await page.locator("#state", has_text="done").wait_for(timeout=300_000)
            outcomes = await page.inner_text("#outcomes")
            print(" ".join(outcomes.split()))
            assert "refused" not in outcomes
        assert await copies_of(cluster, "Billed") == 2 * count


async def log_in(page: Any, console: Console) -> None:
    await page.goto(console.url + "/login")
    await page.fill("#name", runs.NAME)
    await page.fill("#password", runs.PASSWORD)
    await page.click("button.primary")
    await page.wait_for_selector("nav.side")


HOSTILE = {
    "script": b'<script>document.title="owned"</script><img src=x onerror=document.title="owned">',
    "direction": "\u202egnp.exe\u202c \u2066x\u2069".encode(),
    "control": bytes(range(32)) + b"\x7f" + "\u0085\u2028".encode(),
    "broken": b"\xff\xfe\xc3(" * 50,
    "deep": b"[" * 100_000,
    "large": b'{"a": "' + b"<b>" * 1_300_000 + b'"}',
    "template": b"{{ 7 * 7 }} {% raw %} ${7*7}",
    "bomb": zlib.compress(b"A" * 60_000_000, 9),
}


async def test_hostile_messages_and_names_are_text(tmp_path: Path, browser: Any) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        ids: dict[str, str] = {}
        async with Producer("shop", name_servers=cluster.addresses) as producer:
            for name, body in HOSTILE.items():
                tag = '"><script>document.title="owned"</script>'
                properties = {"<img/src=x onerror=document.title='owned'>": "\u202e=1"}
                message = Message("Hostile", body, tags=tag, keys=name, properties=properties)
                ids[name] = (await producer.send(message)).offset_id
        state = await runs.make_user(console, browser)
        context = await runs.open_context(browser, storage_state=state)
        page = await context.new_page()
        problems = runs.watch(page)
        for form in ("auto", "text", "json", "hex", "base64"):
            for name, offset_id in ids.items():
                answer = await page.goto(f"{console.url}/messages/{offset_id}?form={form}")
                assert answer.status == 200, (name, form)
                assert "owned" not in await page.title(), (name, form)
                assert len(await answer.body()) < 1_000_000, (name, form)
        await page.goto(f"{console.url}/messages/{ids['template']}")
        assert "{{ 7 * 7 }}" in await page.inner_text("#body")
        await page.goto(f"{console.url}/messages/{ids['direction']}?form=text")
        assert "U+202E" in await page.inner_text("#body")
        for path in (
            "/messages?topic=Hostile&begin=-1h",
            "/messages?topic=Hostile&by=tail",
            "/query?topic=Hostile&sql=SELECT+*+FROM+messages",
            "/search?q=%3Cscript%3Edocument.title%3D'owned'%3C/script%3E",
            "/topics/%3Cscript%3E",
            "/groups/%22%3E%3Cscript%3Edocument.title='owned'%3C/script%3E",
            "/messages?topic=%3Cscript%3Edocument.title='owned'%3C/script%3E",
            "/login?next=javascript:document.title='owned'",
            "/do/create-topic?preview=1&topic=%22%3E%3Cscript%3E",
        ):
            answer = await page.goto(console.url + path)
            assert answer.status < 500, path
            assert await page.title() != "owned", path
        assert problems == []
        print(f"memory after hostile bodies: {memory_of(console.process.pid):.0f} MB")
        await context.close()


PAGES = (
    "/", "/topics", "/topics/Orders", "/groups", "/groups/billing", "/messages?topic=Orders",
    "/messages?topic=Orders&by=tail", "/dead-letters", "/dead-letters/billing", "/timers",
    "/query?topic=Orders&sql=SELECT+tags,count(*)+FROM+messages+GROUP+BY+1", "/clients", "/brokers",
    "/filters", "/access",
    "/brokers/broker-0", "/name-servers", "/jobs", "/audit", "/settings", "/search?q=o",
    "/do/create-topic", "/do/send-message?topic=Orders", "/do/replay?topic=Orders",
    "/do/reset-offsets?group=billing&topic=Orders&when=-1h&preview=1", "/no-such-page",
)  # fmt: skip

CHECKS = (Path(__file__).parent / "console_checks.js").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
async def test_pages_are_accessible(
    tmp_path: Path, browser: Any, theme: str, language: str
) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        await make_dead(cluster, "Orders", "billing", 5)
        async with Producer("shop", name_servers=cluster.addresses) as producer:
            await producer.send(Message("Orders", b"later", delay_seconds=600))
        consumer = runs.make_consumer(cluster.addresses, "Orders", "billing", [], tags="*")
        async with consumer:
            state = await runs.make_user(console, browser)
            context = await runs.open_context(
                browser,
                storage_state=state,
                locale=language,
                color_scheme=theme,
                bypass_csp=True,
                viewport={"width": 1280, "height": 800},
            )
            page = await context.new_page()
            await until_known(page, console, "/groups/billing.json")
            axe = find_axe()
            problems: dict[str, Any] = {}
            for path in PAGES:
                await page.goto(console.url + path)
                problems[path] = await page.evaluate(CHECKS)
                if axe is not None:
                    await page.evaluate(axe)
                    found = await page.evaluate(
                        "async () => (await axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa',"
                        " 'wcag22aa', 'best-practice']})).violations"
                        ".map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 160),"
                        " v.nodes[0].failureSummary.slice(0, 300)])"
                    )
                    problems[path] += [each for each in found if each[0] != "minor"]
            assert {path: each for path, each in problems.items() if each} == {}
            await context.close()


def find_axe() -> str | None:
    directory = os.environ.get("AXE_CORE")
    return None if directory is None else (Path(directory) / "axe.min.js").read_text()


async def until_known(page: Any, console: Console, path: str) -> None:
    async with asyncio.timeout(60):
        while (await page.request.get(console.url + path)).status != 200:
            await asyncio.sleep(0.2)


async def test_everything_is_reached_by_keys_and_without_script(
    tmp_path: Path, browser: Any
) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        state = await runs.make_user(console, browser)
        await runs.send(cluster.addresses, "Orders", 3)
        context = await runs.open_context(browser, storage_state=state)
        page = await context.new_page()
        await page.goto(console.url + "/")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        keys = await page.eval_on_selector_all(
            ".side a", "links => links.map(a => [a.dataset.key, new URL(a.href).pathname])"
        )
        assert len({key for key, _ in keys}) == len(keys) > 10
        for key, path in keys:
            await page.keyboard.press("g")
            await page.keyboard.press(key)
            await page.wait_for_url(console.url + path)
        # A topic is made with the keyboard alone.
        await page.goto(console.url + "/do/create-topic")
        await page.focus("#topic")
        await page.keyboard.type("Typed")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("table.preview")
        await page.focus("form.act button")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#results-title")
        await until_known(page, console, "/topics/Typed.json")
        await page.goto(console.url + "/topics")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        chosen = await page.inner_text("tr.chosen a")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{console.url}/topics/{chosen}")
        await page.keyboard.press("?")
        assert await page.locator("dialog[open]").count() == 1
        await page.keyboard.press("Escape")
        assert await page.locator("dialog[open]").count() == 0
        await context.close()
        plain = await runs.open_context(browser, storage_state=state, java_script_enabled=False)
        page = await plain.new_page()
        await page.goto(console.url + "/")
        for script_only in ("#live-switch", ".copy"):
            assert await page.locator(script_only).count() == 1
            assert await page.locator(script_only).is_hidden()
        await page.click(".side >> text=Topics")
        await page.fill("#filter", "Type")
        await page.press("#filter", "Enter")
        await page.click("table.rows tbody a >> text=Typed")
        await page.click("main >> text=Delete")
        await page.click("form.act button")
        await page.fill("#typed", "Typed")
        await page.click("button.danger")
        await page.wait_for_selector("#results-title")
        assert "deleted" in await page.inner_text("table")
        await page.goto(console.url + "/messages?topic=Orders&begin=-1h")
        assert await page.locator("table.rows tbody tr").count() >= 3
        await plain.close()
