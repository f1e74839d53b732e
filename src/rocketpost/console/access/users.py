"""The file of the console's users: names, roles and hashes of passwords, readable by its owner.

{"users": [{"name": ..., "role": ..., "readsBodies": ..., "password": "scrypt$..."}]}
"""

from __future__ import annotations

import enum
import os
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from rocketpost.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Role(enum.IntEnum):
    """Rights of a user; each role has those of the one before it."""

    VIEWER = 1
    """Sees everything but bodies, which are a right of their own."""
    OPERATOR = 2
    """Changes what can be changed back."""
    ADMIN = 3
    """Also deletes, and manages users."""

    @property
    def word(self) -> str:
        """The name in lower case."""
        return self.name.lower()


class User(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One user of the console."""

    name: str
    role: str
    reads_bodies: bool = True
    password: str = ""
    made_ms: int = 0

    @property
    def rights(self) -> Role:
        """The role as a value that can be compared."""
        return Role[self.role.upper()]


class _File(msgspec.Struct):
    users: list[User] = []


def name_problem(name: str) -> str | None:
    """Return the key of the text that says why a name is not accepted; None if it is."""
    return None if _NAME.fullmatch(name) else "login.name_form"


class UserFile:
    """Users by name, kept in a file of mode 0600. Belongs to the event loop.

    Only :meth:`load_blocking` and :meth:`save_blocking` touch the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._users: dict[str, User] = {}

    def load_blocking(self) -> None:
        """Read the file, if there is one.

        Raises:
            ConfigError: It cannot be read, others may read it, or it is not such a file.
        """
        try:
            if self._path.stat().st_mode & 0o077:
                raise ConfigError(
                    f"other users of this machine may read {self._path}; `chmod 600` it"
                )
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
            self._users = {each.name: each for each in found.users if each.rights}
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
        except (msgspec.DecodeError, KeyError) as error:
            raise ConfigError(f"{self._path} is not a file of users: {error}") from error

    def save_blocking(self, users: list[User]) -> None:
        """Replace the file.

        Raises:
            OSError: The file cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_File(users)), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    @property
    def is_empty(self) -> bool:
        """Whether there is no user yet."""
        return not self._users

    def find(self, name: str) -> User | None:
        """Return a user, or None."""
        return self._users.get(name)

    def list(self) -> list[User]:
        """Return all users by name."""
        return [self._users[name] for name in sorted(self._users)]

    def put(self, user: User) -> None:
        """Add or replace a user; the file is saved by the caller."""
        self._users[user.name] = msgspec.structs.replace(
            user, made_ms=user.made_ms or time.time_ns() // 1_000_000
        )

    def remove(self, name: str) -> None:
        """Remove a user; the file is saved by the caller."""
        self._users.pop(name, None)
