"""Signed traffic: users and rules that change, and requests that are signed rightly or wrongly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from rocketpost.access import failures
from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.signature import ACCESS_KEY, SIGNATURE, sign
from rocketpost.access.table import AccessTable
from rocketpost.access.words import Action
from rocketpost.kernel import FORM, signatures
from rocketpost.server.access import logins
from rocketpost.server.access.control import AccessControl
from rocketpost.server.access.gate import Gate
from rocketpost.server.settings.access import AccessConfig

from .rig import COMPILED, _plain
from .traffic import Step, Traffic

USERS = ["orders", "orders", "orders", "all", "root", "reader", "中文"]
RULES = {
    "orders": ("Topic:Orders", [Action.PUB.value, Action.SUB.value]),
    "all": ("Topic:*", [Action.PUB.value, Action.SUB.value]),
    "reader": ("Topic:Orders", [Action.SUB.value]),
    "中文": ("Topic:*", [Action.PUB.value]),
}
MISTAKES = ["body", "secret", "value", "unsigned", "no user", "unknown", "short", "case", "added"]


class KeptAudit:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []

    def note(self, event: str, **members: Any) -> None:
        self.notes.append((event, members))

    async def record(self, event: str, **members: Any) -> None:
        self.note(event, **members)


def make_access(config: AccessConfig | None = None) -> AccessControl:
    """Return access control with users, rules and an audit log in memory."""
    table = AccessTable()
    for name in dict.fromkeys(USERS):
        kind = "Super" if name == "root" else "Normal"
        info = UserInfo(username=name, password=first_secret(name), user_type=kind)
        table.create_user(info, caller=None)
    for name in RULES:
        put_rule(table, name)
    audit = KeptAudit()
    given = config or AccessConfig(authentication_enabled=True, authorization_enabled=True)
    return AccessControl(
        table=table, audit=audit, gate=Gate(table, given, cluster="C", audit=audit)
    )


def first_secret(name: str) -> str:
    """Return the secret that a user has at first."""
    return f"secret of {name}" * (9 if name == "all" else 1)  # one is longer than a block


def put_rule(
    table: AccessTable, name: str, *, decision: str = "Allow", sources: list[str] | None = None
) -> None:
    """Set the rule of a user; also for the groups of consumers."""
    resource, actions = RULES[name]
    entries = [
        EntryInfo(resource=each, actions=actions, decision=decision, source_ips=sources)
        for each in (resource, "Group:*")
    ]
    table.put_rules(
        AclInfo(subject=f"User:{name}", policies=[PolicyInfo(entries=entries)]), caller=None
    )


class Signatures:
    """Signs requests, some of them wrongly, and changes users and rules."""

    def __init__(self, rng: random.Random, mistakes: float) -> None:
        self._rng = rng
        self._mistakes = mistakes
        self._secrets = {name: first_secret(name) for name in USERS}
        self._user = "orders"

    def sign(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Return the fields of a request with its signature, if it gets one."""
        rng = self._rng
        if rng.random() < 0.05:
            self._user = rng.choice(USERS)
        user, mistake = self._user, ""
        if rng.random() < self._mistakes:
            mistake = rng.choice(MISTAKES)
        if mistake == "unsigned":
            return fields
        signed = {**fields, ACCESS_KEY: "ghost" if mistake == "unknown" else user}
        if mistake == "no user":
            del signed[ACCESS_KEY]
        if mistake == "case":
            signed[ACCESS_KEY] = user.swapcase()
        secret = self._secrets[user] + ("x" if mistake == "secret" else "")
        signature = sign(secret.encode(), signed, [body + (b"x" if mistake == "body" else b"")])
        if mistake == "short":
            signature = signature[:-1]
        if mistake == "value":
            name = rng.choice(list(fields))
            signed[name] = f"{signed[name]}0"
        if mistake == "added":
            signed["bname"] = "b"
        signed[SIGNATURE] = signature
        names = list(signed)
        if rng.random() < 0.02:
            rng.shuffle(names)
        return {name: signed[name] for name in names}

    def changes(self) -> list[Step]:
        """Return a change of users or rules now and then."""
        rng = self._rng
        chance = rng.random()
        name = rng.choice(["orders", "all", "reader", "中文"])
        if chance < 0.04:
            self._secrets[name] = secret = f"secret {rng.random()}"
            return [_changed("secret", UserInfo(username=name, password=secret))]
        if chance < 0.08:
            status = rng.choice(["disable", "enable", "enable"])
            return [_changed("status", UserInfo(username=name, user_status=status))]
        if chance < 0.16:
            decision = rng.choice(["Allow", "Allow", "Deny"])
            sources = rng.choice([None, None, ["192.0.2.7/32"], ["2001:db8::/32", "192.0.2.8"]])
            return [
                Step(
                    "rule",
                    lambda rig: put_rule(
                        rig.access.table, name, decision=decision, sources=sources
                    ),
                )
            ]
        if chance < 0.19:
            return [Step("rules deleted", lambda rig: _delete_rules(rig, name))]
        return []


def _changed(what: str, info: UserInfo) -> Step:
    return Step(what, lambda rig: rig.access.table.update_user(info, caller=None))


def _delete_rules(rig: Any, name: str) -> None:
    if rig.access.table.rules(f"User:{name}"):
        rig.access.table.delete_rules(f"User:{name}", caller=None)


class SignedTraffic(Traffic):
    """Makes signed sends."""

    def __init__(self, rng: random.Random, mistakes: float = 0.08) -> None:
        super().__init__(rng)
        self._signatures = Signatures(rng, mistakes)

    def sign(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Return the fields of a request with its signature."""
        return self._signatures.sign(fields, body)

    def changes(self) -> list[Step]:
        """Return changes of users and rules."""
        return self._signatures.changes()


@contextmanager
def signers_of(mode: str) -> Iterator[None]:
    """Verify signatures by one build of the kernel, and answer all failed logins at once."""
    build: ModuleType = signatures if mode == COMPILED or not FORM.is_compiled else _plain
    with (
        patch.object(logins, "Signer", build.Signer),
        patch.object(failures, "BURST", 10**9),
    ):
        yield


def access_outcome(access: AccessControl) -> dict[str, Any]:
    """Return all that access control must have recorded, whether there is a lane or not."""
    gate, audit = access.gate, access.audit
    assert gate is not None
    assert isinstance(audit, KeptAudit)
    return {
        "audit": audit.notes,
        "failed logins": gate.failures.total,
        "denied": gate.denied_count,
    }
