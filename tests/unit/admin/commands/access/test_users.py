"""Commands about users and rules, against servers that keep both in memory."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, ClassVar, Self

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.admin import command as command_module
from rocketpost.admin.commands.access.users import COMMANDS
from rocketpost.client.admin.access import make_rules
from rocketpost.codec.bodies.cluster import ClusterInfo
from rocketpost.codec.faults import InvalidParameter, NoPermission, RequestCodeNotSupported
from rocketpost.errors import ConnectionLost, Fault, RocketpostError
from rocketpost.model.route import BrokerData

BY_NAME: dict[str, click.Command] = {each.name or "": each for each in COMMANDS}
ADA = UserInfo(username="ada", password="x1", user_type="Super", user_status="enable")
BOB = UserInfo(username="bob", password="x2", user_type="Normal", user_status="disable")


class FakeServer:
    """The users and rules of one server; or the error with which it answers everything."""

    def __init__(self, *users: UserInfo) -> None:
        self.users = {user.username or "": user for user in users}
        self.rules: dict[str, AclInfo] = {}
        self.changes: list[str] = []
        self.error: RocketpostError | None = None
        self.hides_passwords = False

    def show(self, user: UserInfo) -> UserInfo:
        return msgspec.structs.replace(user, password=None) if self.hides_passwords else user


class FakeAccess:
    """The part of an admin client that asks servers about users and rules."""

    def __init__(self, servers: dict[str, FakeServer]) -> None:
        self._servers = servers

    async def create_user(self, address: str, user: UserInfo) -> None:
        server = self._ask(address, f"create {user.username}")
        assert user.username not in server.users
        server.users[user.username or ""] = user

    async def update_user(self, address: str, user: UserInfo) -> None:
        server = self._ask(address, f"update {user.username}")
        given = {name: value for name, value in msgspec.structs.asdict(user).items() if value}
        before = server.users[user.username or ""]
        server.users[user.username or ""] = msgspec.structs.replace(before, **given)

    async def delete_user(self, address: str, name: str) -> None:
        del self._ask(address, f"delete {name}").users[name]

    async def user(self, address: str, name: str) -> UserInfo | None:
        server = self._ask(address)
        found = server.users.get(name)
        return None if found is None else server.show(found)

    async def users(self, address: str, part: str = "") -> list[UserInfo]:
        server = self._ask(address)
        return [server.show(user) for name, user in server.users.items() if part in name]

    async def put_rules(self, address: str, rules: AclInfo, *, is_update: bool = False) -> None:
        server = self._ask(address, f"{'update' if is_update else 'create'} {rules.subject}")
        server.rules[rules.subject or ""] = rules

    async def delete_rules(self, address: str, subject: str, resource: str = "") -> None:
        self._ask(address, f"delete {subject} {resource}".strip())

    async def rules(self, address: str, subject: str) -> AclInfo | None:
        return self._ask(address).rules.get(subject)

    async def all_rules(
        self, address: str, *, subject_part: str = "", resource_part: str = ""
    ) -> list[AclInfo]:
        return [
            each
            for name, each in self._ask(address).rules.items()
            if subject_part in name and resource_part in str(each)
        ]

    def _ask(self, address: str, change: str = "") -> FakeServer:
        server = self._servers[address]
        if server.error is not None:
            raise server.error
        if change:
            server.changes.append(change)
        return server


class FakeCluster:
    """A cluster of two broker names; the first one has a slave."""

    name_servers: ClassVar = ["n:1"]

    async def info(self) -> ClusterInfo:
        brokers = {"broker-a": {0: "a:1", 1: "s:1"}, "broker-b": {0: "b:1"}}
        return ClusterInfo(
            broker_addr_table={
                name: BrokerData(broker_name=name, broker_addrs=addresses)
                for name, addresses in brokers.items()
            },
            cluster_addr_table={"C": list(brokers)},
        )

    async def masters(self, cluster: str) -> list[str]:
        assert cluster == "C"
        return ["a:1", "b:1"]


class FakeAdmin:
    """An admin client whose servers are in this process."""

    servers: ClassVar[dict[str, FakeServer]] = {}

    def __init__(self, *, config: Any) -> None:
        self.access = FakeAccess(self.servers)
        self.cluster = FakeCluster()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeServer]:
    """Servers by address: two masters, a slave and a name server."""
    made = {address: FakeServer() for address in ("a:1", "b:1", "s:1", "n:1")}
    monkeypatch.setattr(FakeAdmin, "servers", made)
    monkeypatch.setattr(command_module, "AdminClient", FakeAdmin)
    return made


def run(name: str, *words: str, typed: str = "") -> Result:
    return CliRunner().invoke(BY_NAME[name], ["-n", "n:1", *words], input=typed)


def cells(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


# Users.


def test_a_user_is_created_on_one_server(servers: dict[str, FakeServer]) -> None:
    result = run("createUser", "-b", "a:1", "-u", "ada", "-p", "x1", "-t", "Super")
    assert result.stdout == "create user to a:1 success.\n"
    assert servers["a:1"].users == {
        "ada": UserInfo(username="ada", password="x1", user_type="Super")
    }
    assert not servers["b:1"].users


def test_a_password_is_read_from_the_input(servers: dict[str, FakeServer]) -> None:
    run("createUser", "-b", "a:1", "-u", "ada", "-p", "-", typed=" x 1\nmore\n")
    assert servers["a:1"].users["ada"].password == " x 1"
    run("updateUser", "-b", "a:1", "-u", "ada", "-p", "-", typed="x2")
    assert servers["a:1"].users["ada"].password == "x2"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["-p", "x3"], {"password": "x3"}),
        (["-t", "Super"], {"user_type": "Super"}),
        (["-s", "enable"], {"user_status": "enable"}),
    ],
)
def test_one_member_of_a_user_is_changed(
    servers: dict[str, FakeServer], words: list[str], changed: dict[str, str]
) -> None:
    servers["a:1"].users["bob"] = BOB
    result = run("updateUser", "-b", "a:1", "-u", "bob", *words)
    assert result.stdout == "update user to a:1 success.\n"
    assert servers["a:1"].users["bob"] == msgspec.structs.replace(BOB, **changed)


@pytest.mark.parametrize("words", [[], ["-p", "x3", "-t", "Super"]])
def test_a_change_of_none_or_two_members_is_refused(
    servers: dict[str, FakeServer], words: list[str]
) -> None:
    servers["a:1"].users["bob"] = BOB
    result = run("updateUser", "-b", "a:1", "-u", "bob", *words)
    assert result.exit_code == 2
    assert "exactly one of -p, -t and -s" in result.stderr
    assert servers["a:1"].changes == []


def test_a_user_is_deleted_everywhere_in_a_cluster(servers: dict[str, FakeServer]) -> None:
    for server in servers.values():
        server.users["bob"] = BOB
    result = run("deleteUser", "-c", "C", "-u", "bob")
    assert result.stdout.splitlines() == [
        f"delete user to {address} success." for address in ("a:1", "b:1", "s:1", "n:1")
    ]
    assert all(server.changes == ["delete bob"] for server in servers.values())


@pytest.mark.parametrize(
    "error",
    [
        RequestCodeNotSupported("no"),
        NoPermission("access control is off"),
        InvalidParameter("this broker is a follower"),
    ],
)
def test_slaves_and_name_servers_without_users_are_left_out(
    servers: dict[str, FakeServer], error: Fault
) -> None:
    servers["s:1"].error = servers["n:1"].error = error
    result = run("createUser", "-c", "C", "-u", "bob", "-p", "x2", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"server": "a:1"}, {"server": "b:1"}]


def test_a_master_without_users_is_not_left_out(servers: dict[str, FakeServer]) -> None:
    servers["b:1"].error = NoPermission("access control is off")
    result = run("createUser", "-c", "C", "-u", "bob", "-p", "x2")
    assert (result.exit_code, result.stdout) == (1, "create user to a:1 success.\n")
    assert "b:1: refused with code 16: access control is off" in result.stderr
    assert not servers["n:1"].users


def test_another_refusal_of_a_slave_ends_the_command(servers: dict[str, FakeServer]) -> None:
    servers["s:1"].error = NoPermission("not a super user")
    result = run("createUser", "-c", "C", "-u", "bob", "-p", "x2", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [{"server": "a:1"}, {"server": "b:1"}]
    assert "s:1: refused with code 16: not a super user" in result.stderr


def test_a_user_is_shown_by_the_first_master_that_has_it(servers: dict[str, FakeServer]) -> None:
    servers["b:1"].users["ada"] = ADA
    title, row = cells(run("getUser", "-c", "C", "-u", "ada"))
    assert title == ["#UserName", "#Password", "#UserType", "#UserStatus"]
    assert row == ["ada", "x1", "Super", "enable"]
    servers["b:1"].hides_passwords = True
    [shown] = json.loads(run("getUser", "-b", "b:1", "-u", "ada", "--json").stdout)
    assert shown == {
        "username": "ada", "password": "", "userType": "Super", "userStatus": "enable"
    }  # fmt: skip


def test_a_user_that_no_master_has_is_an_error(servers: dict[str, FakeServer]) -> None:
    for options in ((), ("--json",)):
        result = run("getUser", "-c", "C", "-u", "ada", *options)
        assert result.exit_code == 1
        assert "ada" in result.stderr


def test_a_list_of_users_may_be_empty(servers: dict[str, FakeServer]) -> None:
    assert run("listUser", "-c", "C").stdout == ""
    assert json.loads(run("listUser", "-c", "C", "--json").stdout) == []


def test_users_of_one_master_are_listed(servers: dict[str, FakeServer]) -> None:
    servers["b:1"].users = {"ada": ADA, "bob": BOB}
    _, ada, bob, last = cells(run("listUser", "-c", "C"))
    assert [ada[0], bob] == ["ada", ["bob", "x2", "Normal", "disable"]]
    assert last == ["get", "user", "from", "b:1", "success."]
    _, only = cells(run("listUser", "-b", "b:1", "-f", "bo"))
    assert only[0] == "bob"
    found = json.loads(run("listUser", "-c", "C", "--json").stdout)
    assert [each["username"] for each in found] == ["ada", "bob"]


def test_a_refused_question_names_the_server(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].error = NoPermission("no right")
    for name, words in (
        ("getUser", ["-u", "ada"]),
        ("listUser", []),
        ("getAcl", ["-s", "User:ada"]),
        ("listAcl", []),
    ):
        result = run(name, "-b", "a:1", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "mqadmin: a:1: refused with code 16: no right\n"


def test_all_users_are_copied_with_their_passwords(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].users = {"ada": ADA, "bob": BOB}
    servers["b:1"].users["bob"] = msgspec.structs.replace(BOB, password="old")
    result = run("copyUser", "-f", "a:1", "-t", "b:1")
    assert result.stdout.splitlines() == [
        "copy user of ada from a:1 to b:1 success.",
        "copy user of bob from a:1 to b:1 success.",
    ]
    assert servers["b:1"].users == {"ada": ADA, "bob": BOB}
    assert servers["b:1"].changes == ["create ada", "update bob"]


def test_nothing_is_copied_if_one_of_the_users_is_missing(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].users = {"ada": ADA, "bob": BOB}
    result = run("copyUser", "-f", "a:1", "-t", "b:1", "-u", "ada, eve")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a:1 has no user eve; nothing was copied" in result.stderr
    assert servers["b:1"].changes == []
    result = run("copyUser", "-f", "a:1", "-t", "b:1", "-u", " bob ,", "--json")
    assert json.loads(result.stdout) == [{"user": "bob", "source": "a:1", "target": "b:1"}]
    assert servers["b:1"].users == {"bob": BOB}


def test_a_user_is_not_copied_without_its_password(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].users["ada"] = ADA
    servers["a:1"].hides_passwords = True
    result = run("copyUser", "-f", "a:1", "-t", "b:1")
    assert result.exit_code == 1
    assert "does not show the password of ada: be a super user" in result.stderr
    assert servers["b:1"].changes == []


# Rules.

RULE = ["-s", "User:ada", "-r", "Topic:a, Group:b*", "-a", "Pub,Sub", "-d", "Allow"]


@pytest.mark.parametrize("word", ["create", "update"])
def test_rules_are_sent_with_a_resource_each(servers: dict[str, FakeServer], word: str) -> None:
    result = run(f"{word}Acl", "-b", "a:1", *RULE, "-i", "10.0.0.0/8,::1")
    assert result.stdout == f"{word} acl to a:1 success.\n"
    assert servers["a:1"].changes == [f"{word} User:ada"]
    assert servers["a:1"].rules["User:ada"] == make_rules(
        "User:ada", ["Topic:a", "Group:b*"], ["Pub", "Sub"], "Allow", ["10.0.0.0/8", "::1"]
    )


def test_rules_without_sources_are_for_all_of_them(servers: dict[str, FakeServer]) -> None:
    run("createAcl", "-b", "a:1", *RULE)
    [policy] = servers["a:1"].rules["User:ada"].policies or []
    assert [entry.source_ips for entry in policy.entries or []] == [None, None]


def test_rules_are_deleted_all_or_for_one_resource(servers: dict[str, FakeServer]) -> None:
    run("deleteAcl", "-b", "a:1", "-s", "User:ada")
    run("deleteAcl", "-b", "a:1", "-s", "User:ada", "-r", "Topic:a")
    assert servers["a:1"].changes == ["delete User:ada", "delete User:ada Topic:a"]


def test_rules_of_all_masters_are_shown(servers: dict[str, FakeServer]) -> None:
    allowed = make_rules("User:ada", ["Topic:a"], ["Pub", "Sub"], "Allow", ["::1"])
    for policy in allowed.policies or []:
        policy.policy_type = "Custom"
    servers["b:1"].rules["User:ada"] = allowed
    servers["a:1"].rules["User:bob"] = make_rules("User:bob", ["Group:b*"], ["All"], "Deny")
    _, row = cells(run("getAcl", "-c", "C", "-s", "User:ada"))
    assert row == ["User:ada", "Custom", "Topic:a", "[Pub,", "Sub]", "[::1]", "Allow"]
    _, bob, ada = cells(run("listAcl", "-c", "C"))
    assert (bob[-2:], ada) == (["null", "Deny"], row)
    [shown] = json.loads(run("listAcl", "-c", "C", "-r", "Group", "--json").stdout)
    assert (shown["subject"], shown["resource"]) == ("User:bob", "Group:b*")
    [shown] = json.loads(run("listAcl", "-c", "C", "-s", "ada", "--json").stdout)
    assert shown["subject"] == "User:ada"


@pytest.mark.parametrize("words", [["getAcl", "-s", "User:ada"], ["listAcl"]])
def test_no_rules_are_an_empty_result(servers: dict[str, FakeServer], words: list[str]) -> None:
    assert run(*words, "-c", "C").stdout == ""
    assert json.loads(run(*words, "-c", "C", "--json").stdout) == []


def test_a_subject_without_policies_has_no_rows(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].rules["User:ada"] = AclInfo(subject="User:ada")
    assert run("listAcl", "-b", "a:1").stdout == ""


def test_rules_are_copied_all_or_of_some_subjects(servers: dict[str, FakeServer]) -> None:
    kept = servers["a:1"].rules
    for subject in ("User:ada", "User:bob"):
        kept[subject] = make_rules(subject, ["Topic:a"], ["Pub"], "Allow")
    result = run("copyAcl", "-f", "a:1", "-t", "s:1", "-s", "User:bob,User:eve", "--json")
    assert json.loads(result.stdout) == [
        {"subject": "User:bob", "source": "a:1", "target": "s:1"}
    ]  # fmt: skip
    result = run("copyAcl", "-f", "a:1", "-t", "b:1")
    assert result.stdout.splitlines() == [
        "copy acl of User:ada from a:1 to b:1 success.",
        "copy acl of User:bob from a:1 to b:1 success.",
    ]
    assert servers["b:1"].rules == kept


def test_a_lost_connection_ends_a_copy_that_has_begun(servers: dict[str, FakeServer]) -> None:
    servers["a:1"].rules["User:ada"] = make_rules("User:ada", ["Topic:a"], ["Pub"], "Allow")
    servers["b:1"].error = ConnectionLost("lost b:1")
    result = run("copyAcl", "-f", "a:1", "-t", "b:1", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "lost b:1; check the address" in result.stderr
