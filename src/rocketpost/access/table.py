"""The table of users and rules, and the checks of every change to it.

**Invariants:**

- There is always an enabled super user, once there was one: the last one cannot be deleted,
  disabled or made normal. The user of servers does not count, because an administrator may not know
  its password, unless it asks for the change itself.
- Only a super user makes super users, changes them, changes rules, passwords or types, or enables
  a user. A normal user with the right to update the cluster may create normal users, which have no
  rights yet, disable them and delete them.
- Rules belong to a user that exists. They are deleted together with their user.

``auth.json``, in which secrets may be sealed (:class:`Cipher`)::

    {"acls":{"User:norm":{"policies":[...],"subject":"User:norm"}},"counter":7,
     "users":{"norm":{"password":"...","userStatus":"enable","userType":"Normal"}},"version":1}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol, TypeVar

import msgspec

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.access.rules import (
    Policies,
    acl_info,
    merge,
    parse_policies,
    parse_resource,
    without,
)
from rocketpost.access.users import User, check_name, check_secret
from rocketpost.access.words import (
    SUBJECT_PREFIX,
    PolicyType,
    UserStatus,
    UserType,
    find_word,
    subject_text,
)
from rocketpost.errors import Fault, InvalidParameter, NoPermission, ServerError, StoreError

W = TypeVar("W", bound=Enum)

USERS_MAX: Final = 10_000
_VERSION: Final = 1


class Cipher(Protocol):
    """Seals secrets, so that the file does not show them."""

    def seal(self, name: str, secret: str, /) -> str:
        """Return the sealed secret of a user."""
        ...

    def open(self, name: str, sealed: str, /) -> str:
        """Return a user's secret.

        Raises:
            StoreError: It was sealed with another key, or for another user.
        """
        ...


class _StoredUser(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    password: str | None = None
    sealed: str | None = None
    user_type: str
    user_status: str

    def __repr__(self) -> str:
        return f"_StoredUser({self.user_type!r}, {self.user_status!r})"


class _Stored(msgspec.Struct, kw_only=True):
    acls: dict[str, AclInfo] = {}
    counter: int = 0
    users: dict[str, _StoredUser] = {}
    version: int = _VERSION


class AccessTable:
    """Users and their rules. Not thread-safe.

    Args:
        cipher: Seals secrets in the file; None to store them in clear text.
    """

    def __init__(self, cipher: Cipher | None = None) -> None:
        self._cipher = cipher
        self._users: dict[str, User] = {}
        self._policies: dict[str, Policies] = {}
        self.counter = 0
        """Number of all changes ever; it tells two versions of the table apart."""
        self.revision = 0
        """Number of changes in this process, by which the table is saved and cached."""
        self.server_user = ""
        """Name of the user with which servers log in to each other; empty if there is none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change."""

    def __repr__(self) -> str:
        return f"<access table: {len(self._users)} users, counter {self.counter}>"

    @property
    def is_sealed(self) -> bool:
        """Whether the text of the table shows no secret."""
        return self._cipher is not None

    @property
    def users(self) -> list[User]:
        """All users, in the order of their names."""
        return [self._users[name] for name in sorted(self._users)]

    @property
    def has_super(self) -> bool:
        """Whether an enabled super user exists."""
        return any(user.is_super and user.is_enabled for user in self._users.values())

    def user(self, name: str) -> User | None:
        """Return a user, or None if there is none of this name."""
        return self._users.get(name)

    def policies(self, name: str) -> Policies:
        """Return the rules of a user."""
        return self._policies.get(name, {})

    # Users.

    def create_user(self, info: UserInfo, *, caller: User | None) -> User:
        """Add a user.

        Args:
            info: The user; a type or status that is missing is Normal or enable.
            caller: The user who asks for it; None for this server itself.

        Raises:
            Fault: The user exists, or the request is malformed or not permitted.
        """
        name = info.username or ""
        check_name(name)
        if name in self._users:
            raise NoPermission("The user is existed")
        if len(self._users) >= USERS_MAX:
            raise NoPermission(f"there are {USERS_MAX} users already")
        secret = info.password or ""
        check_secret(secret)
        kind = _word(UserType, info.user_type) or UserType.NORMAL
        status = _word(UserStatus, info.user_status) or UserStatus.ENABLE
        if kind is UserType.SUPER and not _is_super(caller):
            raise ServerError("The super user can only be create by super user")
        user = User(name, secret, kind, status is UserStatus.ENABLE)
        self._users[name] = user
        self._note_change()
        return user

    def update_user(self, info: UserInfo, *, caller: User | None) -> User:
        """Change a user; what is missing or blank stays as it is.

        Raises:
            Fault: The user does not exist, or the request is malformed or not permitted.
        """
        user = self._find(info.username)
        kind, status = _word(UserType, info.user_type), _word(UserStatus, info.user_status)
        if kind is UserType.SUPER and not _is_super(caller):
            raise ServerError("The super user can only be update by super user")
        wanted = user
        if info.password and info.password.strip():
            check_secret(info.password)
            wanted = replace(wanted, secret=info.password)
        if kind is not None:
            wanted = replace(wanted, type=kind)
        if status is not None:
            wanted = replace(wanted, is_enabled=status is UserStatus.ENABLE)
        is_disabling = wanted == replace(user, is_enabled=False)
        if not _is_super(caller) and wanted != user and (user.is_super or not is_disabling):
            what = "The super user can only be update by super user" if user.is_super else (
                "only a super user may change passwords and types, or enable users"
            )  # fmt: skip
            raise NoPermission(what)
        self._check_last_super(user, wanted, caller)
        if wanted != user:
            self._users[user.name] = wanted
            self._note_change()
        return wanted

    def delete_user(self, name: str, *, caller: User | None) -> bool:
        """Delete a user and its rules; return whether there was one.

        Raises:
            Fault: The name is blank, or the request is not permitted.
        """
        if not name.strip():
            raise InvalidParameter("The username is blank")
        user = self._users.get(name)
        if user is None:
            return False
        if user.is_super and not _is_super(caller):
            raise NoPermission("The super user can only be delete by super user")
        self._check_last_super(user, None, caller)
        del self._users[name]
        self._policies.pop(name, None)
        self._note_change()
        return True

    # Rules.

    def put_rules(self, info: AclInfo, *, caller: User | None) -> None:
        """Add rules to those of a user; they replace earlier ones for the same resources.

        Raises:
            Fault: The request is malformed or not permitted.
        """
        user = self._find_subject(info.subject)
        if info.policies is None:
            raise InvalidParameter("The body of acl is null: it has no policies")
        policies = parse_policies(info)
        self._check_rule_change(caller)
        self._policies[user.name] = merge(self.policies(user.name), policies)
        self._note_change()

    def delete_rules(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        caller: User | None,
    ) -> None:
        """Delete the rules of a user, all or those for one resource.

        Raises:
            Fault: The user has no rules, or the request is malformed or not permitted.
        """
        user = self._find_subject(subject)
        self._check_rule_change(caller)
        before = self._policies.get(user.name)
        if before is None:
            raise NoPermission("The acl is not exist.")
        if not (resource or "").strip():
            del self._policies[user.name]
        else:
            kind = _word(PolicyType, policy_type) or PolicyType.CUSTOM
            after = without(before, kind, parse_resource(resource))
            if after == before:
                return
            if after:
                self._policies[user.name] = after
            else:
                del self._policies[user.name]
        self._note_change()

    def rules(self, subject: str) -> AclInfo | None:
        """Return the rules of a user; None if there is none.

        Raises:
            Fault: There is no such user.
        """
        user = self._find_subject(subject)
        policies = self._policies.get(user.name)
        return None if policies is None else acl_info(subject_text(user.name), policies)

    def all_rules(self) -> Iterable[AclInfo]:
        """Yield the rules of all users that have some, in the order of their names."""
        for name in sorted(self._policies):
            yield acl_info(subject_text(name), self._policies[name])

    # The file.

    def to_json(self) -> bytes:
        """Return the text of the file."""
        stored = _Stored(
            acls={info.subject or "": info for info in self.all_rules()},
            counter=self.counter,
            users={user.name: self._stored(user) for user in self.users},
        )
        return msgspec.json.encode(stored)

    def load(self, data: bytes) -> None:
        """Read the text of the file.

        Raises:
            StoreError: It is malformed, or secrets are sealed with another key.
        """
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"not a table of users: {error}") from None
        if stored.version != _VERSION:
            raise StoreError(f"the table of users has the unknown version {stored.version}")
        try:
            users = {name: self._read_user(name, each) for name, each in stored.users.items()}
            policies = {
                subject.removeprefix(SUBJECT_PREFIX): parse_policies(info)
                for subject, info in stored.acls.items()
            }
        except Fault as error:
            raise StoreError(f"not a table of users: {error}") from None
        if strangers := policies.keys() - users.keys():
            raise StoreError(f"rules of a user that does not exist: {min(strangers)}")
        self._users, self._policies, self.counter = users, policies, stored.counter
        if self._cipher is not None and any(each.sealed is None for each in stored.users.values()):
            self.revision += 1  # to be saved again, sealed

    def follow(self, data: bytes) -> None:
        """Take over the table of the master, as :meth:`to_json` returns it.

        Raises:
            StoreError: As :meth:`load`; or no super user would be left.
        """
        read = AccessTable(self._cipher)
        read.load(data)
        if self.has_super and not read.has_super:
            raise StoreError("the master's table of users has no super user")
        if (read._users, read._policies) == (self._users, self._policies):
            self.counter = read.counter
            return
        self._users, self._policies, self.counter = read._users, read._policies, read.counter
        self.revision += 1
        self.on_change()

    def _stored(self, user: User) -> _StoredUser:
        info = user.info(with_secret=False)
        stored = _StoredUser(user_type=info.user_type or "", user_status=info.user_status or "")
        if self._cipher is None:
            stored.password = user.secret
        else:
            stored.sealed = self._cipher.seal(user.name, user.secret)
        return stored

    def _read_user(self, name: str, stored: _StoredUser) -> User:
        check_name(name)
        kind = find_word(UserType, stored.user_type)
        status = find_word(UserStatus, stored.user_status)
        if kind is None or status is None:
            raise StoreError(f"the user {name} has an unknown type or status")
        if stored.sealed is None:
            secret = stored.password or ""
        elif self._cipher is None:
            raise StoreError("the secrets are sealed: set authSecretKeyFile to the file of the key")
        else:
            secret = self._cipher.open(name, stored.sealed)
        check_secret(secret)
        return User(name, secret, kind, status is UserStatus.ENABLE)

    # Checks.

    def _find(self, name: str | None) -> User:
        if not (name or "").strip():
            raise InvalidParameter("The username is blank")
        user = self._users.get(name or "")
        if user is None:
            raise NoPermission("The user is not exist")
        return user

    def _find_subject(self, subject: str | None) -> User:
        text = (subject or "").strip()
        if not text.lower().startswith(SUBJECT_PREFIX.lower()) or len(text) == len(SUBJECT_PREFIX):
            raise InvalidParameter(f"The subject {text[:99]!r} must be User: and a name")
        user = self._users.get(text[len(SUBJECT_PREFIX) :])
        if user is None:
            raise NoPermission(f"The subject of {text[:99]} is not exist.")
        return user

    def _check_last_super(self, user: User, wanted: User | None, caller: User | None) -> None:
        if not (user.is_super and user.is_enabled):
            return
        if wanted is not None and wanted.is_super and wanted.is_enabled:
            return
        others = {each.name for each in self._users.values() if each.is_super and each.is_enabled}
        others.discard(user.name)
        besides = ""
        if self.server_user in others and (caller is None or caller.name != self.server_user):
            others.remove(self.server_user)
            besides = f", besides {self.server_user}, which is the user of servers"
        if not others:
            raise NoPermission(
                f"{user.name} is the last super user that is enabled{besides}; "
                "create another one first"
            )

    def _check_rule_change(self, caller: User | None) -> None:
        if not _is_super(caller):
            raise NoPermission("only a super user may change rules")

    def _note_change(self) -> None:
        self.counter += 1
        self.revision += 1
        self.on_change()


def _is_super(caller: User | None) -> bool:
    return caller is None or caller.is_super


def _word(words: type[W], text: str | None) -> W | None:
    if not (text or "").strip():
        return None
    found = find_word(words, text)
    if found is None:
        known = " or ".join(word.value for word in words)
        raise InvalidParameter(f"{text!r} is unknown: it must be {known}")
    return found
