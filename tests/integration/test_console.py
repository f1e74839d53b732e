"""The console as a process: first user, login, refusals, and pages that say what brokers say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.admin.main import mqadmin
from rocketpost.client import Message, Producer, PushConsumer, PushConsumerConfig, StartFrom
from rocketpost.client.admin import AdminClient
from rocketpost.console.views.table import ROUTES
from rocketpost.model.route import MessageQueue
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.process import ServerProcess
from rocketpost.testing.waiting import until

from .console_client import (
    NAME,
    PASSWORD,
    PROGRAM,
    Browser,
    Console,
    make_first_user,
    run_console,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def admin_browser(console: Console) -> Browser:
    return make_first_user(console)


@pytest.fixture
def browser(console: Console, admin_browser: Browser) -> Browser:
    return admin_browser


def test_the_first_user_is_made_once(console: Console, browser: Browser) -> None:
    assert browser.get("/").status == 200
    again = console.browser().get(console.link)
    assert again.status == 410
    fields = {"token": console.link.partition("=")[2], "name": "eve", "password": PASSWORD}
    assert console.browser().post("/invitation", {**fields, "again": PASSWORD}).status == 410
    assert console.browser().log_in("eve").status == 401


def test_a_stranger_sees_no_page(console: Console, browser: Browser) -> None:
    login = console.browser().get("/login").text
    assert 'id="search"' not in login
    assert 'id="freshness"' not in login
    stranger = console.browser()
    guarded = [route for route in ROUTES if route.role is not None]
    assert len(guarded) > 15
    for route in guarded:
        path = re.sub(r"\{\w+\}", "x", route.path)
        if "GET" in route.methods:
            answer = stranger.get(path)
            assert answer.status == 303, path
            assert answer.headers["location"].startswith("/login"), path
            assert stranger.get(path, Accept="application/json").status == 401, path
        else:
            assert stranger.post(path, {"csrf": "guess"}).status == 403, path
    assert stranger.get("/no-such-page").headers["location"] == "/login"
    assert stranger.get("/login").status == 200
    assert stranger.get("/static/console.css").status == 200
    assert stranger.get("/static/../catalogue.toml").status in (303, 404)


def test_foreign_pages_are_refused(console: Console, browser: Browser) -> None:
    token = browser.csrf()
    fields = {"csrf": token, "next": "/"}
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": ""},
    ):
        answer = browser.request("POST", "/logout", fields=fields, headers=headers)
        assert answer.status == 403, headers
    own = {"Sec-Fetch-Site": "", "Origin": console.url}
    assert browser.request("POST", "/preferences", fields=fields, headers=own).status == 303
    assert browser.post("/logout", {"csrf": token + "x"}).status == 403
    assert browser.get("/", Host="evil.example").status == 421
    assert browser.request("DELETE", "/").status == 405
    assert browser.get("/").status == 200  # still logged in


def test_answers_have_strict_headers(console: Console, browser: Browser) -> None:
    headers = browser.get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_a_login_is_checked_and_throttled(console: Console, browser: Browser) -> None:
    visitor = console.browser()
    assert visitor.log_in(NAME, "wrong password").status == 401
    answer = visitor.log_in()
    assert answer.status == 303
    assert visitor.get("/").status == 200
    assert visitor.get("/login?next=//evil.example").headers["location"] == "/"
    attacker = console.browser()
    statuses = [attacker.log_in("root", f"guess {number}").status for number in range(7)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    visitor.post("/logout", {"csrf": visitor.csrf()})
    assert visitor.get("/").status == 303


def test_every_page_is_also_json(console: Console, browser: Browser) -> None:
    overview = browser.json("/")
    assert overview == browser.get("/overview.json").json() or overview.keys()
    [broker] = overview["brokers"]
    assert broker["name"] == "broker-0"
    assert broker["problem"] is None
    shown = browser.json("/brokers/broker-0")
    assert sum(each["count"] for each in shown["writeTimes"]) >= 0
    assert shown["producersProblem"] is None
    pages = ("/brokers", "/brokers/broker-0", "/name-servers", "/topics", "/groups", "/clients")
    pages += ("/dead-letters", "/timers", "/filters", "/access", "/query", "/jobs")
    for path in (*pages, "/messages", "/audit", "/settings", "/search?q=broker-0"):
        html, data = browser.get(path), browser.get(path, Accept="application/json")
        assert (html.status, data.status) in ((200, 200), (303, 200)), path
        assert data.headers["content-type"] == "application/json"
    assert browser.get("/topics/NoSuchTopic").status == 404
    assert browser.get("/groups/nobody", Accept="application/json").status == 404


def test_pages_name_a_command_that_exists(console: Console, browser: Browser) -> None:
    pages = ("/", "/brokers/broker-0", "/name-servers", "/topics", "/groups", "/clients")
    for path in (*pages, "/dead-letters", "/timers", "/filters", "/access"):
        found = re.search(r'id="command">mqadmin (\w+)', browser.get(path).text)
        assert found is not None, path
        with mqadmin.make_context(
            "mqadmin", [found[1], "--help"], resilient_parsing=True
        ) as context:
            assert mqadmin.get_command(context, found[1]) is not None, found[1]


async def test_a_group_and_its_messages_are_shown(
    cluster: Cluster, console: Console, browser: Browser
) -> None:
    topic, group = "Shown", "shown"
    async with Producer("console-test", name_servers=cluster.addresses) as producer:
        for number in range(20):
            tag = "A" if number % 4 == 0 else "B"
            body = b'{"n": %d, "name": "<script>alert(1)</script>"}' % number
            await producer.send(Message(topic, body, tags=tag, keys=f"key-{number}"))
    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer(group, name_servers=cluster.addresses, config=config)
    handled: list[str] = []

    async def handle(message: object) -> None:
        handled.append("one")

    consumer.subscribe(topic, handle, tags="A")
    async with consumer:
        await until(lambda: len(handled) == 5)
    async with Producer("console-test", name_servers=cluster.addresses) as producer:
        for number in range(8):
            await producer.send(Message(topic, b"late", tags="A" if number % 2 else "B"))
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.groups.progress(group, topic)
        retries = MessageQueue("broker-0", 0, f"%RETRY%{group}")
        await admin.groups.set_offset(cluster.broker_addresses[0], group, retries, 0)
    lag = sum(each.broker_offset - each.consumer_offset for each in state.queues.values())
    assert lag >= 8
    await until(lambda: f'"%RETRY%{group}"' in browser.get("/groups.json").text, seconds=30)
    traffic = browser.json(f"/topics/{topic}")
    assert traffic["traffic"]["day"] == 28
    ages = [queue["newestMs"] - queue["oldestMs"] for queue in traffic["queues"]]
    assert all(0 <= age < 3_600_000 for age in ages)
    page = browser.json(f"/groups/{group}")
    assert page["lag"] == lag
    assert page["membersTotal"] == 0
    assert {row["waitsFor"] for row in page["queues"] if row["lag"]} == {"no member is online"}
    assert {row["topic"] for row in page["queues"]} == {topic, f"%RETRY%{group}"}
    shown = browser.get(f"/groups/{group}").text
    assert "没有成员在线" in browser.get(f"/groups/{group}", **{"Accept-Language": "zh"}).text
    for action, name in (("reset-offsets", "group"), ("copy-offsets", "source")):
        assert f'href="/do/{action}?{name}={group}&amp;topic={topic}"' in shown
    found = browser.json(f"/messages?by=time&topic={topic}&tags=A&begin=-1h")
    assert len(found["rows"]) == 9
    assert found["scanned"] == 28
    assert sum(count for _, count, _ in found["bars"]["minute"]) == 9
    assert found["bars"]["tag"] == [["A", 9, 1.0]]
    assert not found["stopped"]
    [hit] = browser.json(f"/messages?by=key&topic={topic}&key=key-4")["rows"]
    message = browser.get(f"/messages/{hit['offsetId']}")
    assert message.status == 200
    assert "<script>alert" not in message.text
    missing = browser.get(f"/messages/{hit['offsetId'][:16]}00000000FFFFFFFF")
    assert missing.status == 404
    assert "there is no message at 4294967295 in the commit log" in missing.text
    assert "&lt;script&gt;alert" in message.text
    assert f'href="/do/replay?topic={topic}&amp;begin={hit["storeMs"]}"' in message.text
    data = browser.json(f"/messages/{hit['id']}?topic={topic}")
    [fate] = data["fates"]
    assert (fate["group"], fate["state"]) == (group, "CONSUMED")
    assert [event["what"] for event in data["events"]][:2] == ["born", "stored"]
    download = browser.get(f"/messages/{hit['offsetId']}/body")
    assert download.headers["content-disposition"].startswith("attachment")
    assert download.headers["content-type"] == "application/octet-stream"
    bad = browser.get(f"/messages?by=time&topic={topic}&sql=a%20%3D%3D")
    assert 'role="alert"' in bad.text


def test_only_servers_of_the_cluster_are_asked(console: Console, browser: Browser) -> None:
    foreign = "0A000001" + "00002A9F" + "0000000000000000"  # 10.0.0.1:10911
    answer = browser.get(f"/messages?by=id&id={foreign}")
    assert "10.0.0.1:10911" in answer.text
    assert browser.get(f"/messages/{foreign}").status == 400


def test_a_viewer_has_fewer_rights(console: Console, browser: Browser) -> None:
    fields = {"csrf": browser.csrf(), "name": "vera", "role": "viewer"}
    page = browser.post("/settings/invite", fields)
    found = re.search(r"(/invitation\?token=[\w-]+)", page.text)
    assert found is not None
    viewer = console.browser()
    token = found[1].partition("=")[2]
    chosen = {"token": token, "password": PASSWORD, "again": PASSWORD}
    assert viewer.post("/invitation", {**chosen, "again": "another one"}).status == 400
    assert viewer.post("/invitation", chosen).status == 303
    assert viewer.get("/topics").status == 200
    refused = viewer.post("/settings/invite", {"csrf": viewer.csrf(), "name": "eve"})
    assert refused.status == 403
    assert viewer.json("/settings")["users"] == []
    removed = browser.post("/settings/remove", {"csrf": browser.csrf(), "name": "vera"})
    assert removed.status == 303
    assert viewer.get("/topics").status == 303  # the session ended with the user


def test_languages_and_themes(console: Console, browser: Browser) -> None:
    assert "概览" in browser.get("/", **{"Accept-Language": "zh-CN"}).text
    stranger = console.browser()
    stranger.post("/preferences", {"language": "zh", "theme": "dark", "next": "/login"})
    page = stranger.get("/login").text
    assert 'lang="zh-CN"' in page
    assert 'data-theme="dark"' in page


def test_what_a_search_does_not_find_is_looked_for_elsewhere(browser: Browser) -> None:
    page = browser.get("/search?q=order%2042").text
    assert "Nothing was found" in page
    assert 'href="/messages?by=key&amp;key=order+42"' in page
    assert 'href="/clients?q=order+42"' in page


def test_the_audit_log_says_who_read_what(console: Console, browser: Browser) -> None:
    lines = browser.json("/audit")["rows"]
    acts = {line["act"] for line in lines}
    assert {"make user", "login"} <= acts
    assert all(PASSWORD not in str(line) for line in lines)
    chinese = browser.get("/audit", **{"Accept-Language": "zh"}).text
    assert "创建用户" in chinese
    assert "make user" not in chinese


def test_a_console_that_others_reach_needs_tls(cluster: Cluster, tmp_path: Path) -> None:
    command = ["console", "-n", cluster.addresses, "--host", "0.0.0.0", "--state", str(tmp_path)]
    process = ServerProcess(command, ready="never", program=PROGRAM)
    process.launch()
    process.wait_for("in the clear", seconds=30)
    process.kill()


def test_the_console_does_not_start_without_its_certificate(tmp_path: Path) -> None:
    command = ["console", "-n", "127.0.0.1:1", "--port", "0", "--state", str(tmp_path / "state")]
    missing = str(tmp_path / "missing.pem")
    words = [sys.executable, *PROGRAM, *command, "--tls-cert", missing, "--tls-key", missing]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == f"error: cannot read {missing}: No such file or directory\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_stops_the_console_in_order(
    cluster: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    with run_console(cluster.addresses, tmp_path) as console:
        process = console.process
        os.kill(process.pid, number)
        deadline = time.monotonic() + 30
        while process.is_running:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.exit_code == 0
        assert not any("Traceback" in line or "Aborted" in line for line in process.output)


def test_a_broker_that_is_killed_is_shown_at_once(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        browser = make_first_user(console)
        assert browser.json("/")["brokers"][0]["inTps"] is not None
        cluster.brokers[0].kill()
        deadline = time.monotonic() + 60  # a round and a call take 10 s on an idle machine
        while (page := browser.json("/"))["brokers"][0]["problem"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert page["brokers"][0]["inTps"] is None
        assert (page["inTps"], page["inToday"]) == (None, None)
        assert page["alarms"][0]["kind"] == "silent"
        assert "no answer" in browser.get("/brokers").text


def test_nothing_is_missing_while_the_name_server_is_down(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        browser = make_first_user(console)
        assert browser.get("/topics/TBW102").status == 200
        assert browser.get("/topics/Nowhere").status == 404
        cluster.name_servers[0].kill()
        deadline = time.monotonic() + 60
        while browser.get("/topics/TBW102").status != 502:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        page = browser.json("/")
        assert (page["topics"], page["groups"], page["lag"]) == (None, None, None)
        shown = browser.get("/").text
        assert "No name server answers" in shown
        assert "Nothing needs attention" not in shown
        for path in ("/topics", "/groups", "/brokers", "/clients", "/dead-letters"):
            assert "0 in all" not in browser.get(path).text
