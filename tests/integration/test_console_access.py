"""The console of brokers with access control: their users log in, and they decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.access.info import UserInfo
from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.access import make_rules
from rocketpost.client.config import ClientConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, make_first_user, run_console
from .secured import GUARDED, ROOT
from .test_console_actions import confirm, preview

pytestmark = pytest.mark.slow


async def prepare(cluster: Cluster) -> None:
    config = ClientConfig(name_servers=cluster.addresses, credentials=ROOT)
    async with AdminClient(config=config) as admin:
        [address] = cluster.broker_addresses
        for topic in ("Orders", "Secrets"):
            await admin.topics.create(address, TopicConfig(topic_name=topic))
        user = UserInfo(username="olga", password="olga-secret", user_type="Normal")
        await admin.access.create_user(address, user)
        rules = make_rules("User:olga", ["Topic:Orders"], ["Get", "List", "Sub"], "Allow")
        await admin.access.put_rules(address, rules)


async def test_users_of_brokers_log_in_and_brokers_decide(tmp_path: Path) -> None:
    own = {"ROCKETMQ_ACCESS_KEY": ROOT.access_key, "ROCKETMQ_SECRET_KEY": ROOT.secret_key}
    with Cluster(tmp_path / "cluster", settings=GUARDED) as cluster:
        await prepare(cluster)
        with run_console(cluster.addresses, tmp_path / "state", environment=own) as console:
            first = make_first_user(console)
            await until(lambda: "Secrets" in first.get("/topics.json").text, seconds=30)
            page = first.json("/access")
            assert [(user["name"], user["type"]) for user in page["users"]] == [
                ("olga", "Normal"),
                ("root", "Super"),
                ("servers", "Super"),
            ]
            assert "root-secret" not in first.get("/access").text
            [rule] = page["rules"]
            assert (rule["subject"], rule["resource"]) == ("User:olga", "Topic:Orders")
            root = console.browser()
            assert root.log_in("root", "wrong-secret").status == 401
            assert root.log_in("root", "root-secret").status == 303
            assert root.get("/settings").status == 200
            shown = preview(root, "create-topic", topic="Rooted")
            assert "done" in confirm(root, "create-topic", shown).text
            olga = console.browser()
            assert olga.log_in("olga", "olga-secret").status == 303
            assert olga.get("/access").status == 403  # she is no administrator
            assert 'href="/access"' not in olga.get("/").text
            assert 'href="/access"' in root.get("/").text
            assert olga.get("/do/delete-topic").status == 403
            check_rights(olga)
            cluster.name_servers[0].kill()
            await until(lambda: first.json("/")["topics"] is None, seconds=60)
            late = console.browser().log_in("olga", "olga-secret")
            assert late.status == 401
            assert "cannot be asked now" in late.text


def check_rights(olga: Browser) -> None:
    """What olga's rules do not allow, the brokers refuse: the console signs with her keys."""
    shown = preview(olga, "create-topic", topic="Forbidden")
    assert "refused" in confirm(olga, "create-topic", shown).text
    assert olga.get("/topics/Orders").status == 200
    assert olga.json("/topics/Secrets")["problems"]


async def test_a_user_of_one_cluster_is_a_stranger_to_another(tmp_path: Path) -> None:
    own = {"ROCKETMQ_ACCESS_KEY": ROOT.access_key, "ROCKETMQ_SECRET_KEY": ROOT.secret_key}
    with (
        Cluster(tmp_path / "guarded", settings=GUARDED) as cluster,
        Cluster(tmp_path / "open") as other,
    ):
        await prepare(cluster)
        options = ("-n", other.addresses)
        state = tmp_path / "state"
        with run_console(cluster.addresses, state, *options, environment=own) as console:
            first = make_first_user(console)
            names = [cluster.addresses, other.addresses]
            for name in names:
                path = f"/topics/TBW102?cluster={name}"
                await until(lambda: first.get(path).status == 200, seconds=30)  # noqa: B023
            olga = console.browser()
            assert olga.log_in("olga", "olga-secret").status == 303
            assert olga.get(f"/topics/Orders?cluster={cluster.addresses}").status == 200
            for path in ("/topics/TBW102", "/messages?topic=TBW102", "/dead-letters/some"):
                refused = olga.get(f"{path}{'&' if '?' in path else '?'}cluster={other.addresses}")
                assert refused.status != 500
                assert "your login is not one of this cluster" in refused.text
