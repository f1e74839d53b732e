"""Accounts of RocketMQ's old access control (``plain_acl.yml``) as users and rules.

No account gets a right that it did not have. The old permissions are names, not patterns, so a name
with ``*`` is left out; a misspelt permission denies, as it did before. Addresses from which no
signature was needed are not carried over. Every difference has a line in the report.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.words import EVERY, subject_text

_ACTIONS: Final = {
    "PUB": ["Pub"],
    "SUB": ["Sub"],
    "PUB|SUB": ["Pub", "Sub"],
    "SUB|PUB": ["Pub", "Sub"],
}


class Account(NamedTuple):
    """An account as a user with its rules."""

    user: UserInfo
    rules: AclInfo | None


class Migration(NamedTuple):
    """The accounts of a file, and what was not carried over."""

    accounts: list[Account]
    notes: list[str]


def read_plain_acl(document: Any) -> Migration:
    """Return the accounts in a parsed file, of each name the first one.

    Args:
        document: The file as YAML reads it; any value is accepted.
    """
    accounts: dict[str, Account] = {}
    notes: list[str] = []
    if not isinstance(document, dict):
        return Migration([], ["the file has no accounts"] if document else [])
    if document.get("globalWhiteRemoteAddresses"):
        notes.append("globalWhiteRemoteAddresses: requests from there need a user now")
    found = document.get("accounts")
    for number, account in enumerate(found if isinstance(found, list) else []):
        if not isinstance(account, dict):
            notes.append(f"account {number + 1} is malformed")
            continue
        name, secret = (str(account.get(key) or "") for key in ("accessKey", "secretKey"))
        if not name or not secret:
            notes.append(f"account {number + 1} lacks accessKey or secretKey")
        elif name in accounts:
            notes.append(f"{name}: only the first account of this name counts")
        else:
            accounts[name] = _account(name, secret, account, notes)
    return Migration(list(accounts.values()), notes)


def _account(name: str, secret: str, account: dict[Any, Any], notes: list[str]) -> Account:
    if account.get("whiteRemoteAddress"):
        notes.append(f"{name}: whiteRemoteAddress: requests from there must be signed now")
    is_admin = account.get("admin") is True
    user = UserInfo(username=name, password=secret, user_type="Super" if is_admin else "Normal")
    custom, default = [], []
    for key, kind in (("topicPerms", "Topic"), ("groupPerms", "Group")):
        listed = account.get(key)
        for text in listed if isinstance(listed, list) else []:
            resource, _, permission = str(text).partition("=")
            if not resource.strip() or EVERY in resource:
                notes.append(f"{name}: {key} {text!r}: the name is not carried over")
                continue
            entry = _entry(f"{kind}:{resource.strip()}", permission, f"{name}: {text!r}", notes)
            custom.append(entry)
    for key, kind in (("defaultTopicPerm", "Topic"), ("defaultGroupPerm", "Group")):
        if account.get(key):
            text = str(account[key])
            default.append(_entry(f"{kind}:{EVERY}", text, f"{name}: {key}={text!r}", notes))
    policies = [
        PolicyInfo(policy_type=kind, entries=entries)
        for kind, entries in (("Custom", custom), ("Default", default))
        if entries
    ]
    rules = AclInfo(subject=subject_text(name), policies=policies) if policies else None
    return Account(user, rules)


def _entry(resource: str, permission: str, where: str, notes: list[str]) -> EntryInfo:
    words = permission.replace(" ", "").upper()
    actions = _ACTIONS.get(words)
    if actions is None and words != "DENY":
        notes.append(f"{where}: the permission is unknown, so it denies")
    if actions is None:
        return EntryInfo(resource=resource, actions=["All"], decision="Deny")
    return EntryInfo(resource=resource, actions=actions, decision="Allow")
