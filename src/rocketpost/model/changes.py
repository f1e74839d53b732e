"""Changes of configurations: partial ones applied to whole ones, and differences as text.

A change is a struct whose members are those of the configuration, each None unless it is given.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

import msgspec

C = TypeVar("C", bound=msgspec.Struct)

_ATTRIBUTES: Final = "attributes"


class Difference(NamedTuple):
    """One member that differs; ``before`` or ``after`` is None for an attribute that is not set."""

    name: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.name}={value_text(self.before)}->{value_text(self.after)}"


def apply(change: msgspec.Struct, config: C) -> C:
    """Return ``config`` with the members that ``change`` gives; None leaves a member as it is."""
    given = {
        field.name: value
        for field in msgspec.structs.fields(change)
        if (value := getattr(change, field.name)) is not None
    }
    return msgspec.structs.replace(config, **given)


def differences(before: C, after: C) -> list[Difference]:
    """Return the members in which two configurations differ, attributes one by one."""
    found = []
    for field in msgspec.structs.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if field.name == _ATTRIBUTES:
            names = sorted(old.keys() | new.keys())
            found += [
                Difference(name, old.get(name), new.get(name))
                for name in names
                if old.get(name) != new.get(name)
            ]
        else:
            found.append(Difference(field.encode_name, old, new))
    return found


def members_text(config: msgspec.Struct) -> str:
    """Return the members of a configuration that are not empty, as ``name=value`` pairs."""
    pairs = [
        (field.encode_name, getattr(config, field.name)) for field in msgspec.structs.fields(config)
    ]
    return " ".join(f"{name}={value_text(value)}" for name, value in pairs if value not in ({}, ""))


def value_text(value: Any) -> str:
    """Return a value as RocketMQ's files spell it; ``unset`` for None."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
