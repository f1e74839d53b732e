"""The words of RocketMQ's access control (ACL 2.0). They are compared without regard to case."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

W = TypeVar("W", bound=Enum)

SUBJECT_PREFIX: Final = "User:"
"""Beginning of the text that names a user as the subject of rules."""
EVERY: Final = "*"
"""The name that stands for every topic, group or cluster."""


class Action(Enum):
    """Action of a request on a resource."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Kind(Enum):
    """Kind of resource that a rule names."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Decision(Enum):
    """Effect of a rule."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(Enum):
    """Part of a user's rules. The default rules count only if no custom rule matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class UserType(Enum):
    """Type of a user. A super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """Admission of a user."""

    ENABLE = "enable"
    DISABLE = "disable"


def find_word(words: type[W], text: str | None) -> W | None:
    """Return the word that a text spells, or None if it spells none."""
    wanted = (text or "").strip().lower()
    for word in words:
        if word.value.lower() == wanted:
            return word
    return None


def subject_text(user_name: str) -> str:
    """Return the text that names a user as the subject of rules."""
    return SUBJECT_PREFIX + user_name
