"""Runs of the console in a real Chromium that hold for brokers of every make.

Each takes a console, its name servers and a browser. Messages are sent and consumed in the same
event loop, so the browser is driven by Playwright's asynchronous interface.
"""

from __future__ import annotations

import asyncio
import html
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.console.views.table import ROUTES

from .console_client import NAME, PASSWORD, Console

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
NO_CHROMIUM = "there is no chromium-headless-shell"
FOREIGN_HOST = "evil.example"
PATIENCE_MS = 240_000
"""Time that a page may take on a machine that is busy with other tests; Playwright's is 30 s."""


@asynccontextmanager
async def run_chromium() -> AsyncIterator[Any]:
    """Run a browser; a foreign name leads to this machine, as an attacker's name server would."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        rules = f"--host-resolver-rules=MAP {FOREIGN_HOST} 127.0.0.1"
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[rules])
        try:
            yield browser
        finally:
            await browser.close()


async def open_context(browser: Any, **options: Any) -> Any:
    """Return a new profile of a browser, whose pages are waited for as long as a test may take."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


def watch(page: Any) -> list[str]:
    """Return a list that fills with errors of scripts and violations of the policy."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def note(line: Any) -> None:
        if line.type == "error" and "the server responded with a status of" not in line.text:
            problems.append(line.text)

    page.on("console", note)
    return problems


async def make_user(console: Console, browser: Any) -> Any:
    """Run 1: no password is known, the printed link makes the first user, once."""
    context = await open_context(browser)
    page = await context.new_page()
    problems = watch(page)
    await page.goto(console.url + "/")
    assert "/login" in page.url
    assert await page.locator("#password").count() == 0  # nobody can log in yet
    await page.goto(console.url + console.link)
    await page.fill("#name", NAME)
    await page.fill("#password", PASSWORD)
    await page.fill("#again", PASSWORD)
    await page.click("button.primary")
    await page.wait_for_selector("nav.side")
    stranger = await open_context(browser)
    other = await stranger.new_page()
    assert (await other.goto(console.url + console.link)).status == 410
    await stranger.close()
    assert problems == []
    state = await context.storage_state()
    await context.close()
    return state


async def refuse_strangers(console: Console, browser: Any) -> None:
    """Run 2: every page sends a stranger to the login, and a program away."""
    context = await open_context(browser)
    page = await context.new_page()
    guarded = [each for each in ROUTES if each.role is not None]
    assert len(guarded) > 25
    for route in guarded:
        path = re.sub(r"\{\w+\}", "x", route.path)
        if "GET" in route.methods:
            await page.goto(console.url + path)
            assert "/login" in page.url, path
            json = {"Accept": "application/json"}
            answer = await context.request.get(console.url + path, headers=json)
            assert answer.status == 401, path
        else:
            headers = {"Sec-Fetch-Site": "same-origin"}
            answer = await context.request.post(
                console.url + path, form={"csrf": "x"}, headers=headers
            )
            assert answer.status == 403, path
    await context.close()


@contextmanager
def serve_page(text: str) -> Iterator[str]:
    """Serve a page on another port, as a foreign site."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def refuse_foreign_pages(console: Console, browser: Any, state: Any) -> None:
    """Run 3: a foreign page can neither change, nor read, nor frame; nor use a name of its own."""
    context = await open_context(browser, storage_state=state)
    own = await context.new_page()
    await own.goto(console.url + "/do/create-group?preview=1&group=stolen")
    fields = {
        name: await own.locator(f'input[name="{name}"]').last.get_attribute("value")
        for name in ("csrf", "ticket")
    }
    inputs = "".join(f'<input name="{k}" value="{html.escape(v)}">' for k, v in fields.items())
    target = f"{console.url}/do/create-group"
    evil = f"""<!doctype html><title>evil</title>
        <form id="f" method="post" action="{target}">{inputs}</form>
        <iframe id="i" src="{console.url}/"></iframe>"""
    with serve_page(evil) as url:
        page = await context.new_page()
        for read in ("/overview.json", "/"):
            await page.goto(url)
            failed = await page.evaluate(
                "async (url) => { try { await (await fetch(url, {credentials: 'include'})).text();"
                " return false } catch (error) { return true } }",
                console.url + read,
            )
            assert failed, "a foreign page read the console"
        frame = page.frame(url=lambda address: address.startswith(console.url))
        shown = "" if frame is None else await frame.content()
        assert 'class="side"' not in shown  # not even in a frame of a logged-in browser
        async with page.expect_navigation() as waiting:
            await page.evaluate("document.getElementById('f').submit()")
        assert (await waiting.value).status == 403
    answer = await own.goto(console.url.replace("127.0.0.1", FOREIGN_HOST) + "/login")
    assert answer.status == 421
    found = await (await context.request.get(console.url + "/groups.json")).text()
    assert "stolen" not in found
    await context.close()


async def notice_a_kill(
    console: Console, browser: Any, state: Any, kill: Callable[[], None], *, seconds: float
) -> None:
    """Run 4: an open page says that a broker is silent, and shows no number that was true once."""
    context = await open_context(browser, storage_state=state)
    page = await context.new_page()
    await page.goto(console.url + "/")
    await page.wait_for_selector("#freshness .dot-good", timeout=30_000)
    kill()
    began = time.monotonic()
    await page.wait_for_selector("#freshness .dot-bad", timeout=seconds * 1000)
    took = time.monotonic() - began
    print(f"silent broker shown after {took:.1f} s")
    figures = await page.inner_text(".figures")
    assert "N/A" in figures
    data = await (await context.request.get(console.url + "/overview.json")).json()
    assert (data["inTps"], data["outTps"], data["inToday"]) == (None, None, None)
    assert all(each["inTps"] is None for each in data["brokers"])
    await page.goto(console.url + "/brokers")
    assert await page.locator(".row-bad").count() >= 1
    await context.close()


async def make_topic(page: Any, console: Console, topic: str, queues: int) -> None:
    """Create a topic by clicks."""
    await page.goto(console.url + "/do/create-topic")
    await page.fill("#topic", topic)
    await page.fill("#queues", str(queues))
    await page.click("button.primary")
    await page.wait_for_selector("table.preview")
    await page.click("button.primary")
    await page.wait_for_selector("#results-title")
    assert "done" in await page.inner_text("table")
    async with asyncio.timeout(60):
        while True:
            answer = await page.request.get(f"{console.url}/topics/{topic}.json")
            if answer.status == 200:
                return
            await asyncio.sleep(0.2)


async def send(name_servers: str, topic: str, count: int, **more: Any) -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, **more))


def make_consumer(
    name_servers: str, topic: str, group: str, handled: list[bytes], **more: Any
) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    config = PushConsumerConfig(start_from=StartFrom.FIRST, persist_seconds=0.2)
    consumer = PushConsumer(group, name_servers=name_servers, config=config)
    consumer.subscribe(topic, handle, **more)
    return consumer


async def until_true(ready: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not ready():
            await asyncio.sleep(0.05)


async def read_table(page: Any, selector: str) -> list[list[str]]:
    """Return the cells of a table as the browser shows them."""
    rows: list[list[str]] = await page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    return rows


async def reset_as_shown(
    console: Console, browser: Any, state: Any, name_servers: str, topic: str
) -> None:
    """Run 5: what a reset shows before is what it does, for groups with members and without."""
    context = await open_context(browser, storage_state=state)
    page = await context.new_page()
    await make_topic(page, console, topic, 2)
    await send(name_servers, topic, 20)
    for group, online in (("resting", False), ("working", True)):
        handled: list[bytes] = []
        consumer = make_consumer(name_servers, topic, group, handled)
        await consumer.start()
        try:
            await until_true(lambda: len(handled) == 20)  # noqa: B023
            await until_committed(name_servers, group, topic, 20)
            if not online:
                await consumer.stop()
            wish = {"preview": "1", "group": group, "topic": topic, "when": "-1h"}
            await page.goto(f"{console.url}/do/reset-offsets?{urlencode(wish)}")
            assert "20 messages are delivered again" in await page.inner_text(".risks")
            shown = {row[0]: row[2] for row in await read_table(page, "table.preview")}
            await page.click("form.act button")
            await page.wait_for_selector("#results-title")
            done = await read_table(page, "table")
            assert {row[0]: row[2] for row in done} == shown, group
            assert {row[1] for row in done} == {"done"}, group
            if online:
                await until_true(lambda: len(handled) == 40)  # noqa: B023
                assert sorted(handled) == sorted(handled[:20] * 2)
            else:
                async with AdminClient(name_servers=name_servers) as admin:
                    progress = await admin.groups.progress(group, topic)
                after = {
                    f"{queue.broker_name} {queue.queue_id}": str(each.consumer_offset)
                    for queue, each in progress.queues.items()
                }
                assert after == shown
        finally:
            if online:
                await consumer.stop()
    await context.close()


async def until_committed(name_servers: str, group: str, topic: str, count: int) -> None:
    async with AdminClient(name_servers=name_servers) as admin, asyncio.timeout(60):
        while True:
            state = await admin.groups.progress(group, topic)
            if sum(each.consumer_offset for each in state.queues.values()) == count:
                return
            await asyncio.sleep(0.1)


async def count_exactly(
    console: Console, browser: Any, state: Any, name_servers: str, topic: str
) -> None:
    """Run 6: with a filter, the page shows how many messages really wait."""
    context = await open_context(browser, storage_state=state)
    page = await context.new_page()
    await make_topic(page, console, topic, 2)
    release, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()

    config = PushConsumerConfig(start_from=StartFrom.FIRST, persist_seconds=0.2)
    consumer = PushConsumer("picky", name_servers=name_servers, config=config)
    consumer.subscribe(topic, handle, tags="A")
    async with Producer("shop", name_servers=name_servers) as producer:
        queues = await producer.queues(topic)
        for number in range(60):
            tag = "A" if number % 5 == 0 else "B"
            message = Message(topic, b"%d" % number, tags=tag)
            await producer.send(message, queue=queues[number % 2])
    async with consumer:
        await begun.wait()
        await page.goto(console.url + "/groups")
        async with asyncio.timeout(60):
            while True:
                await page.goto(f"{console.url}/groups/picky")
                if await page.locator("#matching").all_inner_texts() == ["12"]:
                    break
                await asyncio.sleep(0.5)
        async with AdminClient(name_servers=name_servers) as admin:
            progress = await admin.groups.progress("picky", topic)
        behind = sum(each.broker_offset - each.consumer_offset for each in progress.queues.values())
        assert 12 < behind <= 60
        assert await page.inner_text("#lag") == str(behind)
        waits = await page.locator(".waits").all_inner_texts()
        assert waits  # and says what its queues wait for
        release.set()
    await context.close()
