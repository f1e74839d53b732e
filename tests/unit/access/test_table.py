"""The table of users and rules: its changes, the checks of them, and its file."""

from __future__ import annotations

import pytest

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.table import USERS_MAX, AccessTable
from rocketpost.access.users import User
from rocketpost.access.words import PolicyType, UserType
from rocketpost.errors import Fault, InvalidParameter, NoPermission, ServerError, StoreError


class Mirror:
    """A cipher that anybody could read."""

    def seal(self, name: str, secret: str) -> str:
        return f"{name}:{secret[::-1]}"

    def open(self, name: str, sealed: str) -> str:
        owner, _, text = sealed.partition(":")
        if owner != name:
            raise StoreError("sealed for another user")
        return text[::-1]


def acl(subject: str, resource: str, actions: str = "Pub", decision: str = "Allow") -> AclInfo:
    entry = EntryInfo(resource=resource, actions=actions.split(","), decision=decision)
    return AclInfo(subject=subject, policies=[PolicyInfo(entries=[entry])])


@pytest.fixture
def table() -> AccessTable:
    """A table with the users root (super), norm and clerk."""
    table = AccessTable()
    table.create_user(UserInfo(username="root", password="r", user_type="Super"), caller=None)
    for name in ("norm", "clerk"):
        table.create_user(UserInfo(username=name, password="n"), caller=None)
    return table


def user(table: AccessTable, name: str) -> User:
    found = table.user(name)
    assert found is not None
    return found


def test_users_are_created_changed_and_deleted(table: AccessTable) -> None:
    root = user(table, "root")
    assert user(table, "norm") == User("norm", "n", UserType.NORMAL, True)
    table.update_user(UserInfo(username="norm", password="new"), caller=root)
    table.update_user(UserInfo(username="norm", user_status="disable"), caller=root)
    table.update_user(UserInfo(username="norm", password=" "), caller=root)
    assert user(table, "norm") == User("norm", "new", UserType.NORMAL, False)
    table.put_rules(acl("User:norm", "Topic:T"), caller=root)
    assert table.delete_user("norm", caller=root)
    assert not table.delete_user("norm", caller=root)
    table.create_user(UserInfo(username="norm", password="n"), caller=root)
    assert table.rules("User:norm") is None, "the rules of a deleted user are gone"
    assert [each.name for each in table.users] == ["clerk", "norm", "root"]


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (UserInfo(password="p"), InvalidParameter),
        (UserInfo(username=" ", password="p"), InvalidParameter),
        (UserInfo(username=" a", password="p"), InvalidParameter),
        (UserInfo(username="a\n", password="p"), InvalidParameter),
        (UserInfo(username="x" * 129, password="p"), InvalidParameter),
        (UserInfo(username="new"), NoPermission),
        (UserInfo(username="new", password="p" * 1025), NoPermission),
        (UserInfo(username="norm", password="p"), NoPermission),
        (UserInfo(username="new", password="p", user_type="King"), InvalidParameter),
    ],
)
def test_malformed_users_are_refused(
    table: AccessTable, info: UserInfo, error: type[Fault]
) -> None:
    before = table.to_json()
    with pytest.raises(error):
        table.create_user(info, caller=user(table, "root"))
    assert table.to_json() == before


def test_a_normal_user_cannot_make_or_touch_super_users(table: AccessTable) -> None:
    clerk = user(table, "clerk")
    before = table.to_json()
    with pytest.raises(ServerError, match="only be create by super"):
        table.create_user(UserInfo(username="x", password="x", user_type="super"), caller=clerk)
    with pytest.raises(ServerError, match="only be update by super"):
        table.update_user(UserInfo(username="clerk", user_type="Super"), caller=clerk)
    for info in (
        UserInfo(username="root", password="x"),
        UserInfo(username="root", user_status="disable"),
        UserInfo(username="root", user_type="Normal"),
        UserInfo(username="norm", password="x"),
        UserInfo(username="clerk", password="x"),
    ):
        with pytest.raises(NoPermission):
            table.update_user(info, caller=clerk)
    with pytest.raises(NoPermission):
        table.delete_user("root", caller=clerk)
    for subject in ("User:clerk", "User:norm"):
        with pytest.raises(NoPermission, match="only a super user"):
            table.put_rules(acl(subject, "*", "All"), caller=clerk)
        with pytest.raises(NoPermission, match="only a super user"):
            table.delete_rules(subject, caller=clerk)
    assert table.to_json() == before


def test_a_normal_user_may_create_disable_and_delete_normal_users(table: AccessTable) -> None:
    clerk = user(table, "clerk")
    table.create_user(UserInfo(username="x", password="x"), caller=clerk)
    table.update_user(UserInfo(username="x", user_status="disable"), caller=clerk)
    with pytest.raises(NoPermission):
        table.update_user(UserInfo(username="x", user_status="enable"), caller=clerk)
    assert table.delete_user("x", caller=clerk)


def test_the_last_super_user_stays(table: AccessTable) -> None:
    root = user(table, "root")
    for change in (
        UserInfo(username="root", user_status="disable"),
        UserInfo(username="root", user_type="Normal"),
    ):
        with pytest.raises(NoPermission, match="last super user"):
            table.update_user(change, caller=root)
    with pytest.raises(NoPermission, match="last super user"):
        table.delete_user("root", caller=root)
    table.create_user(UserInfo(username="two", password="2", user_type="Super"), caller=root)
    assert table.delete_user("root", caller=root)
    assert table.has_super


@pytest.mark.parametrize(
    "change", [None, {"user_status": "disable"}, {"user_type": "Normal"}], ids=str
)
def test_the_user_of_servers_is_not_the_last_super_user(
    table: AccessTable, change: dict[str, str] | None
) -> None:
    def remove(name: str, *, caller: User | None) -> None:
        if change is None:
            assert table.delete_user(name, caller=caller)
        else:
            table.update_user(UserInfo(username=name, **change), caller=caller)

    root = user(table, "root")
    table.create_user(UserInfo(username="peer", password="p", user_type="Super"), caller=root)
    table.server_user = "peer"
    for caller in (root, None):
        with pytest.raises(NoPermission, match="last super user that is enabled, besides peer"):
            remove("root", caller=caller)
    remove("root", caller=user(table, "peer"))
    with pytest.raises(NoPermission, match="peer is the last super user that is enabled; create"):
        remove("peer", caller=None)
    root = table.create_user(UserInfo(username="two", password="2", user_type="Super"), caller=None)
    remove("peer", caller=root)
    assert table.has_super


def test_rules_are_merged_shown_and_deleted(table: AccessTable) -> None:
    root = user(table, "root")
    table.put_rules(acl("User:norm", "Topic:T"), caller=root)
    table.put_rules(acl("User:norm", "Topic:U", "Sub"), caller=root)
    table.put_rules(acl("User:norm", "Topic:T", "Sub", "Deny"), caller=root)
    texts = [str(rule) for rule in table.policies("norm")[PolicyType.CUSTOM]]
    assert texts == ["Deny Sub on Topic:T", "Allow Sub on Topic:U"]
    revision = table.revision
    table.delete_rules("User:norm", resource="Topic:X", caller=root)
    assert table.revision == revision
    table.delete_rules("User:norm", resource="Topic:T", caller=root)
    table.delete_rules("User:norm", resource="Topic:U", policy_type="Custom", caller=root)
    assert table.rules("User:norm") is None
    with pytest.raises(NoPermission, match="acl is not exist"):
        table.delete_rules("User:norm", caller=root)
    table.put_rules(acl("User:norm", "Topic:T"), caller=root)
    table.delete_rules("User:norm", caller=root)
    assert list(table.all_rules()) == []


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (acl("User:ghost", "Topic:T"), NoPermission),
        (acl("norm", "Topic:T"), InvalidParameter),
        (acl("User:", "Topic:T"), InvalidParameter),
        (acl("User:norm", "Queue:q"), NoPermission),
        (AclInfo(subject="User:norm"), InvalidParameter),
    ],
)
def test_malformed_rules_are_refused(table: AccessTable, info: AclInfo, error: type[Fault]) -> None:
    before = table.to_json()
    with pytest.raises(error):
        table.put_rules(info, caller=user(table, "root"))
    assert table.to_json() == before


def test_the_file_reads_back(table: AccessTable) -> None:
    table.put_rules(acl("User:norm", "Topic:T"), caller=None)
    read = AccessTable()
    read.load(table.to_json())
    assert read.users == table.users
    assert read.policies("norm") == table.policies("norm")
    assert read.counter == table.counter == 4
    assert read.revision == 0
    assert "norm" not in repr(read)


def test_secrets_are_sealed_if_there_is_a_key(table: AccessTable) -> None:
    table.update_user(UserInfo(username="norm", password="hidden"), caller=None)
    clear = table.to_json()
    assert b"hidden" in clear
    sealed = AccessTable(Mirror())
    sealed.load(clear)
    assert sealed.revision == 1, "it is saved again, sealed"
    text = sealed.to_json()
    assert b"hidden" not in text
    again = AccessTable(Mirror())
    again.load(text)
    assert again.users == table.users
    assert again.revision == 0
    with pytest.raises(StoreError, match="authSecretKeyFile"):
        AccessTable().load(text)
    with pytest.raises(StoreError, match="another user"):
        again.load(text.replace(b'"norm"', b'"name"'))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version":2}',
        b'{"users":{"a":{"userType":"Super","userStatus":"enable"}}}',
        b'{"users":{"a":{"password":"p","userType":"King","userStatus":"enable"}}}',
        b'{"users":{" ":{"password":"p","userType":"Super","userStatus":"enable"}}}',
        b'{"acls":{"User:a":{"policies":[{"entries":[{"resource":"*","actions":["All"],'
        b'"decision":"Allow"}]}]}}}',
        b'{"acls":{"User:a":{"policies":[]}}}',
    ],
)
def test_a_damaged_file_is_refused(table: AccessTable, text: bytes) -> None:
    before = table.users
    with pytest.raises(StoreError):
        table.load(text)
    assert table.users == before


def test_a_slave_takes_over_the_table_of_its_master(table: AccessTable) -> None:
    slave = AccessTable()
    changes = []
    slave.on_change = lambda: changes.append(slave.revision)
    slave.follow(table.to_json())
    slave.follow(table.to_json())
    assert changes == [1]
    assert slave.users == table.users
    with pytest.raises(StoreError, match="no super user"):
        slave.follow(AccessTable().to_json())
    assert slave.users == table.users


def test_the_number_of_users_is_bounded(table: AccessTable) -> None:
    for number in range(USERS_MAX - 3):
        table._users[f"u{number}"] = User(f"u{number}", "s")
    with pytest.raises(NoPermission, match="already"):
        table.create_user(UserInfo(username="more", password="p"), caller=None)


def test_nothing_shows_a_secret(table: AccessTable) -> None:
    info = UserInfo(username="norm", password="hidden")
    changed = table.update_user(info, caller=None)
    assert "hidden" not in f"{info!r} {changed!r} {table!r}"
    assert changed.info(with_secret=False).password is None
    assert changed.info(with_secret=True).password == "hidden"
