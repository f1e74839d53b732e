"""Migration of old accounts: no right becomes wider."""

from __future__ import annotations

import pytest

from rocketpost.access.decision import decide
from rocketpost.access.plain_acl import read_plain_acl
from rocketpost.access.table import AccessTable
from rocketpost.access.words import Action, Kind

OLD = {
    "globalWhiteRemoteAddresses": ["10.*"],
    "accounts": [
        {
            "accessKey": "app",
            "secretKey": "app-secret",
            "whiteRemoteAddress": "192.168.0.*",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["a=DENY", "b=PUB|SUB", "c=SUB", "d*=PUB", "e=PBU"],
            "groupPerms": ["g=DENY", "h=SUB"],
        },
        {"accessKey": "boss", "secretKey": "boss-secret", "admin": True},
        {"accessKey": "app", "secretKey": "second"},
        {"accessKey": "half"},
        "odd",
    ],
}


def test_accounts_become_users_with_the_rights_they_had() -> None:
    migration = read_plain_acl(OLD)
    table = AccessTable()
    for account in migration.accounts:
        table.create_user(account.user, caller=None)
        if account.rules is not None:
            table.put_rules(account.rules, caller=None)
    app, boss = table.users
    assert (app.name, app.secret, app.is_super) == ("app", "app-secret", False)
    assert boss.is_super

    def may(kind: Kind, name: str, action: Action) -> bool:
        policies = table.policies("app")
        verdict = decide(app, policies, kind=kind, name=name, actions=(action,), source=None)
        return verdict.is_allowed

    allowed = {
        (Kind.TOPIC, "b", Action.PUB),
        (Kind.TOPIC, "b", Action.SUB),
        (Kind.TOPIC, "c", Action.SUB),
        (Kind.GROUP, "h", Action.SUB),
        (Kind.GROUP, "other", Action.SUB),
    }
    for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER):
        for name in ("a", "b", "c", "d", "dd", "d*", "e", "g", "h", "other"):
            for action in Action:
                key = (kind, name, action)
                by_default = kind is Kind.GROUP and action is Action.SUB and name != "g"
                assert may(*key) is (key in allowed or by_default), key
    told = "\n".join(migration.notes)
    for word in ("globalWhite", "whiteRemote", "'d*=PUB'", "'e=PBU'", "first account", "lacks"):
        assert word in told
    assert "secret" not in told.replace("secretKey", "")


@pytest.mark.parametrize("odd", [None, [], "text", {}, {"accounts": "x"}, {"accounts": [{}]}])
def test_odd_files_give_no_accounts(odd: object) -> None:
    assert read_plain_acl(odd).accounts == []
