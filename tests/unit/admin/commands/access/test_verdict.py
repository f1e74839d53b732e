"""What ``mqadmin access`` says, from the users, rules and settings that servers answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import pytest
from click.testing import CliRunner, Result

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.admin import command
from rocketpost.admin.commands.access.verdict import COMMANDS
from rocketpost.client.admin.access import make_rules
from rocketpost.codec.faults import NoPermission, RequestCodeNotSupported
from rocketpost.errors import Fault

HERE = "b:1"


class FakeServer:
    """A server with a table of users. A name server has no settings of a broker."""

    def __init__(self, table: AccessTable, config: Mapping[str, str] | None) -> None:
        self.table = table
        self.settings = config
        self.refusal: Fault | None = None


class FakeAdmin:
    """Answers for some servers, as one cluster."""

    def __init__(self, servers: Mapping[str, FakeServer]) -> None:
        self._servers = servers
        self.access = self.brokers = self.cluster = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def masters(self, cluster: str) -> list[str]:
        assert cluster == "C"
        return list(self._servers)

    async def user(self, address: str, name: str) -> UserInfo | None:
        server = self._servers[address]
        if server.refusal is not None:
            raise server.refusal
        user = server.table.user(name)
        return None if user is None else user.info(with_secret=False)

    async def rules(self, address: str, subject: str) -> AclInfo | None:
        return self._servers[address].table.rules(subject)

    async def config(self, address: str) -> Mapping[str, str]:
        settings = self._servers[address].settings
        if settings is None:
            raise RequestCodeNotSupported("code 26")
        return settings


@pytest.fixture
def table() -> AccessTable:
    """A normal user with rules, one without, one that is disabled, and a super user."""
    table = AccessTable()
    for name, kind, status in (
        ("norm", "Normal", "enable"),
        ("new", "Normal", "enable"),
        ("gone", "Super", "disable"),
        ("root", "Super", "enable"),
    ):
        info = UserInfo(username=name, password="p", user_type=kind, user_status=status)
        table.create_user(info, caller=None)
    for rules in (
        make_rules("User:norm", ["Topic:orders", "Topic:pre*"], ["Pub", "Sub"], "Allow"),
        make_rules("User:norm", ["Topic:secret"], ["All"], "Deny"),
        make_rules("User:norm", ["Group:*"], ["Sub"], "Allow", ["10.0.0.0/8"]),
    ):
        table.put_rules(rules, caller=None)
    return table


@pytest.fixture
def server(table: AccessTable) -> FakeServer:
    return FakeServer(table, {"authenticationEnabled": "true", "authorizationEnabled": "true"})


def run(monkeypatch: pytest.MonkeyPatch, servers: Mapping[str, FakeServer], *args: str) -> Result:
    monkeypatch.setattr(command, "AdminClient", lambda *, config: FakeAdmin(servers))
    return CliRunner().invoke(COMMANDS[0], ["-n", "ns:1", *args])


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("norm Pub Topic:orders", "allowed, Custom rule: Allow Pub,Sub on Topic:orders"),
        ("norm pub topic:prefix", "allowed, Custom rule: Allow Pub,Sub on Topic:pre*"),
        ("norm Pub Topic:secret", "denied, Custom rule: Deny All on Topic:secret"),
        ("norm Get Topic:orders", "denied, no rule matches"),
        ("norm Pub Topic:*", "denied, no rule matches"),
        ("norm Sub Group:g", "denied, no rule matches"),
        ("norm Sub Group:g -i 11.0.0.1", "denied, no rule matches"),
        ("norm Sub Group:g -i 10.0.0.1", "allowed, Custom rule: Allow Sub on Group:* from 10."),
        ("norm Sub Group:* -i 10.0.0.1", "allowed, Custom rule: Allow Sub on Group:* from 10."),
        ("new Pub Topic:orders", "denied, no rule matches"),
        ("gone Pub Topic:orders", "denied, the user gone is disabled"),
        ("root Delete *", "allowed, root is a super user"),
        ("ghost Pub Topic:orders", "denied, there is no user ghost"),
    ],
)
def test_a_question_is_answered_with_the_rule_that_decides(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, question: str, answer: str
) -> None:
    done = run(monkeypatch, {HERE: server}, *question.split(), "-b", HERE)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{HERE}: {answer}")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("user", "authentication", "answer"),
    [
        ("ghost", "false", "allowed, access control is off: everybody may do everything"),
        ("gone", "false", "allowed, access control is off: everybody may do everything"),
        ("norm", "true", "allowed, authorizationEnabled is false: every user may do everything"),
        ("ghost", "true", "denied, there is no user ghost"),
    ],
)
def test_a_server_that_checks_no_rights_allows_what_no_rule_does(
    monkeypatch: pytest.MonkeyPatch,
    table: AccessTable,
    user: str,
    authentication: str,
    answer: str,
) -> None:
    config = {"authenticationEnabled": authentication, "authorizationEnabled": "false"}
    servers = {HERE: FakeServer(table, config)}
    done = run(monkeypatch, servers, user, "Delete", "Topic:secret", "-b", HERE)
    assert done.stdout == f"{HERE}: {answer}\n"


def test_every_master_of_a_cluster_answers_for_itself(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    servers = {
        "b:1": server,
        "b:2": FakeServer(AccessTable(), server.settings),
        "b:3": FakeServer(AccessTable(), {"authorizationEnabled": "false",
                                          "authenticationEnabled": "false"}),
    }  # fmt: skip
    done = run(monkeypatch, servers, "norm", "Pub", "Topic:orders", "-c", "C", "--json")
    assert json.loads(done.stdout) == [
        {
            "broker": "b:1",
            "allowed": True,
            "reason": "Custom rule: Allow Pub,Sub on Topic:orders",
        },
        {"broker": "b:2", "allowed": False, "reason": "no such user"},
        {
            "broker": "b:3",
            "allowed": True,
            "reason": "access control is off: everybody may do everything",
        },
    ]


def test_a_server_without_the_settings_of_a_broker_is_judged_by_its_rules(
    monkeypatch: pytest.MonkeyPatch, table: AccessTable
) -> None:
    servers = {HERE: FakeServer(table, None)}
    done = run(monkeypatch, servers, "norm", "Sub", "Topic:orders", "-b", HERE)
    assert done.stdout.startswith(f"{HERE}: allowed, Custom rule:")


def test_a_refusal_names_the_server(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    server.refusal = NoPermission("only a super user")
    done = run(monkeypatch, {HERE: server}, "norm", "Pub", "Topic:orders", "-b", HERE)
    assert done.exit_code == 1
    assert done.stderr == f"mqadmin: {HERE}: refused with code 16: only a super user\n"


@pytest.mark.parametrize("action", ["Read", "All", ""])
def test_an_unknown_action_is_refused_with_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, action: str
) -> None:
    done = run(monkeypatch, {HERE: server}, "norm", action, "Topic:orders", "-b", HERE)
    assert done.exit_code == 2
    assert "is not an action" in done.stderr
    assert "Pub, Sub, Create, Update, Delete, Get, List" in " ".join(done.stderr.split())


def test_a_prefix_is_refused_since_no_request_has_one(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    """It would be answered as all topics, in spite of a rule that denies this prefix."""
    allow = make_rules("User:norm", ["Topic:*"], ["Pub"], "Allow")
    server.table.put_rules(allow, caller=None)
    server.table.put_rules(make_rules("User:norm", ["Topic:pre*"], ["Pub"], "Deny"), caller=None)
    done = run(monkeypatch, {HERE: server}, "norm", "Pub", "Topic:pre*", "-b", HERE)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "name one resource, or Topic:*" in " ".join(done.stderr.split())


def test_a_source_that_is_not_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    question = ("norm", "Sub", "Group:g", "-b", HERE)
    done = run(monkeypatch, {HERE: server}, *question, "-i", "10.0.0.0/8")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'10.0.0.0/8' is not an IP address" in done.stderr


def test_an_unknown_resource_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    done = run(monkeypatch, {HERE: server}, "norm", "Pub", "orders", "-b", HERE)
    assert done.exit_code == 1
    assert "must be *, or Topic:, Group: or Cluster:" in done.stderr
