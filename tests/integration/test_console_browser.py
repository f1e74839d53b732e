"""The console in a real Chromium: first start, changes by clicks, keys, themes, languages.

``CONSOLE_SHOTS=DIRECTORY`` keeps a picture of every page.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import NAME, PASSWORD, Console, run_console
from .console_runs import CHROMIUM, NO_CHROMIUM, PATIENCE_MS
from .test_console_dead_letters import make_dead

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM),
]
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

HOSTILE = b'{"name": "<script>document.title = \'owned\'</script>"}'
LONG_NAME = "the-events-of-the-service-to-which-some-team-once-gave-a-rather-long-name-v2"
LISTS = ("/topics", "/groups", "/clients")
PAGES = (
    "/", "/topics", "/topics/Orders", "/groups", "/groups/billing", "/messages?topic=Orders",
    "/messages?topic=Orders&by=tail", "/dead-letters", "/dead-letters/shipping",
    "/query?topic=Orders&sql=SELECT+tags,+count(*)+AS+messages,+sum(size)+AS+bytes+FROM+messages+"
    "GROUP+BY+tags+ORDER+BY+messages+DESC", "/timers", "/clients", "/brokers", "/brokers/broker-0",
    "/name-servers", "/jobs", "/filters", "/access", "/audit", "/settings", "/search?q=o",
    "/do/create-topic",
    "/do/send-message?topic=Orders", "/do/replay?topic=Orders",
    "/do/reset-offsets?group=billing&topic=Orders&when=-1h&preview=1",
    "/do/resend-dead-letters?group=shipping&preview=1", "/do/delete-topic?topic=Orders&preview=1",
)  # fmt: skip


async def fill(name_servers: str) -> None:
    """Send messages, and leave a group behind."""
    async with Producer("shop", name_servers=name_servers) as producer:
        for number in range(30):
            await producer.send(Message("Orders", HOSTILE, tags="paid", keys=f"order-{number}"))
        handled: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)

        config = PushConsumerConfig(start_from=StartFrom.FIRST)
        consumer = PushConsumer("billing", name_servers=name_servers, config=config)
        consumer.subscribe("Orders", handle)
        async with consumer:
            await until(lambda: len(handled) == 30)
        for number in range(12):
            tag = "paid" if number % 3 else "open"
            await producer.send(Message("Orders", HOSTILE, tags=tag))
        await producer.send(Message("Orders", b"later", delay_seconds=600))
        await producer.send(Message(LONG_NAME, b"x"))
        consumer = PushConsumer(LONG_NAME, name_servers=name_servers, config=config)
        consumer.subscribe(LONG_NAME, handle)
        async with consumer:
            await until(lambda: len(handled) == 31)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Cluster(tmp_path_factory.mktemp("browser")) as cluster:
        asyncio.run(fill(cluster.addresses))
        asyncio.run(make_dead(cluster, "Parcels", "shipping", 7))
        with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
            yield running


class Watch:
    """Problems that a page reports: errors of scripts, and violations of the policy."""

    def __init__(self, page: Any) -> None:
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self._note(line))

    def _note(self, line: Any) -> None:
        if line.type == "error" and "the server responded with a status of" not in line.text:
            self.problems.append(line.text)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM)
        yield running
        running.close()


def open_context(browser: Any, **options: Any) -> Any:
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture(scope="module")
def state(console: Console, chromium: Any) -> Any:
    """Make the first user in the browser, and return the cookies of the session."""
    context = open_context(chromium)
    page = context.new_page()
    watch = Watch(page)
    page.goto(console.url + "/")
    assert "/login" in page.url
    page.goto(console.url + console.link)
    page.fill("#name", NAME)
    page.fill("#password", PASSWORD)
    page.fill("#again", PASSWORD)
    page.click("button.primary")
    page.wait_for_selector("nav.side")
    assert page.goto(console.url + console.link).status == 410
    assert watch.problems == []
    found = context.storage_state()
    context.close()
    return found


def test_a_topic_is_made_by_clicks_and_deleted_by_typing(
    console: Console, chromium: Any, state: Any
) -> None:
    context = open_context(chromium, storage_state=state)
    page = context.new_page()
    watch = Watch(page)
    page.goto(console.url + "/topics")
    page.click("text=Create a topic")
    page.fill("#topic", "Invoices")
    page.click("button.primary")
    assert "8 / 8 RW-" in page.inner_text("table")
    page.click("button.primary")
    assert "done" in page.inner_text("table")
    page.goto(console.url + "/do/delete-topic?topic=Invoices&preview=1")
    page.fill("#typed", "Invoice")
    page.click("button.danger.wide")
    assert "type Invoices to confirm" in page.inner_text("[role=alert]")
    page.fill("#typed", "Invoices")
    page.click("button.danger.wide")
    assert "deleted" in page.inner_text("table")
    assert watch.problems == []
    context.close()


def test_keys_lead_through_the_pages(console: Console, chromium: Any, state: Any) -> None:
    context = open_context(chromium, storage_state=state)
    page = context.new_page()
    page.goto(console.url + "/")
    for letter, path in (("t", "/topics"), ("g", "/groups"), ("b", "/brokers"), ("o", "/")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(console.url + path)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("billing")
    page.keyboard.press("Enter")
    page.wait_for_url(console.url + "/groups/billing")
    context.close()


@pytest.mark.parametrize(
    ("language", "theme"),
    [
        ("en-US", "light"),
        ("zh-CN", "dark"),
        pytest.param("en-US", "dark", marks=pytest.mark.long),
        pytest.param("zh-CN", "light", marks=pytest.mark.long),
    ],
)
def test_every_page_is_shown_without_an_error(
    console: Console, chromium: Any, state: Any, language: str, theme: str
) -> None:
    context = open_context(
        chromium,
        storage_state=state,
        locale=language,
        color_scheme=theme,
        viewport={"width": 1280, "height": 860},
    )
    page = context.new_page()
    watch = Watch(page)
    # A topic that others made is known after a round that reads tables.
    until_status(page, console.url + "/dead-letters/shipping", 200)
    for path in PAGES:
        answer = page.goto(console.url + path)
        assert answer.status == 200, path
        assert page.title() != "owned"
        assert page.locator("h1").count() == 1, path
        wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        assert not wide, f"{path} is wider than the window"
        if path in LISTS:
            cut = page.eval_on_selector_all(
                ".scroll", "tables => tables.filter(t => t.scrollWidth > t.clientWidth).length"
            )
            assert cut == 0, f"figures of {path} are out of sight"
        keep_picture(page, path, language, theme)
    assert page.evaluate("document.documentElement.lang").startswith(language[:2])
    page.goto(console.url + "/messages?by=key&topic=Orders&key=order-3")
    page.click("table a >> nth=0")
    page.wait_for_selector("#sentence")
    assert "<script>" in page.inner_text("main")
    assert page.title() != "owned"
    keep_picture(page, "/message", language, theme)
    assert watch.problems == []
    context.close()


def until_status(page: Any, url: str, status: int) -> None:
    deadline = time.monotonic() + 60
    while page.goto(url).status != status:
        assert time.monotonic() < deadline


def keep_picture(page: Any, path: str, language: str, theme: str) -> None:
    if directory := os.environ.get("CONSOLE_SHOTS"):
        name = path.partition("?")[0].strip("/").replace("/", "-") or "overview"
        name += "-tail" if "by=tail" in path else ""
        page.screenshot(path=Path(directory) / f"{name}-{theme}-{language}.png", full_page=True)
