"""Users: a name, a secret that signs requests, a type and a status."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rocketpost.access.info import UserInfo
from rocketpost.access.words import UserStatus, UserType
from rocketpost.errors import InvalidParameter, NoPermission

NAME_CHARS_MAX: Final = 128
SECRET_CHARS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class User:
    """One user. The secret is never shown."""

    name: str
    secret: str = field(repr=False)
    type: UserType = UserType.NORMAL
    is_enabled: bool = True

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.type is UserType.SUPER

    def info(self, *, with_secret: bool) -> UserInfo:
        """Return the user as tools show it."""
        status = UserStatus.ENABLE if self.is_enabled else UserStatus.DISABLE
        return UserInfo(
            username=self.name,
            password=self.secret if with_secret else None,
            user_type=self.type.value,
            user_status=status.value,
        )


def check_name(name: str) -> None:
    """Check the name of a new user.

    Raises:
        InvalidParameter: It is blank, too long or cannot be printed.
    """
    if not name.strip():
        raise InvalidParameter("The username is blank")
    if len(name) > NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidParameter(
            f"The username must have 1 to {NAME_CHARS_MAX} printable characters, without blanks "
            "around it"
        )


def check_secret(secret: str) -> None:
    """Check a new password.

    Raises:
        NoPermission: It is blank or too long. RocketMQ has the same code for it.
    """
    if not secret.strip():
        raise NoPermission("password can not be blank")
    if len(secret) > SECRET_CHARS_MAX:
        raise NoPermission(f"the password has more than {SECRET_CHARS_MAX} characters")
