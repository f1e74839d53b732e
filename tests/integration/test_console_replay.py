"""Messages are copied to another topic: in order, filtered, once, also after a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, make_first_user, run_console
from .test_console_actions import confirm, preview
from .test_console_dead_letters import copies_of, wait_for

pytestmark = pytest.mark.slow


async def make_topic(browser: Browser, topic: str) -> None:
    shown = preview(browser, "create-topic", topic=topic, queues="2")
    assert "done" in confirm(browser, "create-topic", shown).text
    await until(lambda: topic in browser.get("/topics.json").text, seconds=30)


async def send(cluster: Cluster, topic: str, count: int) -> None:
    async with Producer("shop", name_servers=cluster.addresses) as producer:
        for number in range(count):
            tag = "even" if number % 2 == 0 else "odd"
            properties = {"price": str(number)}
            await producer.send(
                Message(topic, b"%d" % number, tags=tag, keys=f"k{number}", properties=properties)
            )


def start(browser: Browser, **fields: str) -> str:
    shown = preview(browser, "replay", begin="-1h", **fields)
    assert shown.status == 200, shown.text
    answer = confirm(browser, "replay", shown, typed=fields["target"])
    assert answer.status == 303, answer.text
    return answer.headers["location"]


async def test_messages_are_copied_by_a_rule_and_after_a_kill(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        with run_console(cluster.addresses, tmp_path / "state") as console:
            browser = make_first_user(console)
            await make_topic(browser, "Source")
            await make_topic(browser, "Target")
            await make_topic(browser, "Some")
            await send(cluster, "Source", 300)
            assert preview(browser, "replay", topic="Source", target="Source").status == 400
            missing = preview(browser, "replay", topic="Source", target="Nowhere", tags="kept")
            assert missing.status == 404
            assert "There is no Nowhere." in missing.text
            assert 'value="kept"' in missing.text  # the form keeps what was typed
            bad = preview(browser, "replay", topic="Source", target="Some", sql="price >")
            assert bad.status == 400
            path = start(
                browser, topic="Source", target="Some", tags="even", sql="price < 100", rate="5000"
            )
            job = wait_for(browser, path, "done")
            assert job["counts"] == {"sent": 50, "filtered": 250}
            rows = browser.json("/messages?topic=Some&begin=-1h")["rows"]
            assert {row["tags"] for row in rows} == {"even"}
            assert len(rows) == 50
            origin = browser.json(f"/messages/{rows[0]['offsetId']}")["properties"]
            assert browser.get(f"/messages/{origin['CONSOLE_ORIGIN']}").status == 200
            path = start(browser, topic="Source", target="Target", rate="60")
            await until(lambda: browser.json(path)["counts"].get("sent", 0) > 70, seconds=30)
            console.process.kill()
        with run_console(cluster.addresses, tmp_path / "state") as console:
            browser = console.browser()
            browser.log_in()
            assert browser.json(path)["state"] == "interrupted"
            browser.post(f"{path}/resume", {"csrf": browser.csrf()})
            job = wait_for(browser, path, "done")
            assert job["counts"].get("refused") is None
            assert await copies_of(cluster, "Target") == 300
            keys: Counter[str] = Counter()
            at = ""
            while True:
                page = browser.json(f"/messages?topic=Target&begin=-1h&at={at}")
                keys.update(key for row in page["rows"] for key in row["keys"])
                if not (at := page["next"]):
                    break
            assert keys == Counter({f"k{number}": 1 for number in range(300)})
