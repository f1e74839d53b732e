"""Changes of configurations: applying them, and showing differences as text.

A change is a struct with the members of the configuration, each None unless given.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

C = TypeVar("C", bound=msgspec.Struct)

_ATTRIBUTES: Final = "attributes"


class Difference(NamedTuple):
    """One differing member; ``before`` or ``after`` is None for an attribute that is not set."""

    name: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.name}={value_text(self.before)}->{value_text(self.after)}"


def apply(change: msgspec.Struct, config: C) -> C:
    """Return ``config`` with the members that ``change`` sets; None leaves a member unchanged."""
    given = {
        field.name: value
        for field in _fields(type(change))
        if (value := getattr(change, field.name)) is not None
    }
    return msgspec.structs.replace(config, **given)


def differences(before: C, after: C) -> list[Difference]:
    """Return the members in which two configurations differ, attributes one by one."""
    found = []
    for field in _fields(type(before)):
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
    """Return the non-empty members of a configuration as ``name=value`` pairs."""
    pairs = [(field.encode_name, getattr(config, field.name)) for field in _fields(type(config))]
    return " ".join(f"{name}={value_text(value)}" for name, value in pairs if value not in ({}, ""))


def value_text(value: Any) -> str:
    """Return a value as RocketMQ's files write it; ``unset`` for None."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a kind of struct; msgspec evaluates all annotations in each call."""
    return msgspec.structs.fields(kind)
