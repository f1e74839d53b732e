"""Attributes as requests write them, and the check that something exists as it is wanted.

Brokers keep attributes by name; a request writes ``+name`` to set one and ``-name`` to remove one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rocketpost.errors import AlreadyExists
from rocketpost.model.changes import differences

C = TypeVar("C", bound=msgspec.Struct)


def set_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of something new by name, whether they were given as ``+name`` or not.

    Names with a minus sign have nothing to remove and are left out.
    """
    return {
        name.removeprefix("+"): value
        for name, value in attributes.items()
        if not name.startswith("-")
    }


def changed_attributes(
    present: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """Return ``present`` with ``changes`` made; None removes an attribute."""
    merged: dict[str, str | None] = {**present, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def signed_attributes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return, as a request writes it, what turns the attributes ``present`` into ``wanted``."""
    changes = {f"-{name}": "" for name in present if name not in wanted}
    for name, value in wanted.items():
        if present.get(name) != value:
            changes[f"+{name}"] = value
    return changes


def check_same(what: str, present: C, wanted: C) -> None:
    """Check that something exists as it is wanted.

    Raises:
        AlreadyExists: It exists otherwise.
    """
    found = differences(present, wanted)
    if found:
        texts = ", ".join(map(str, found))
        raise AlreadyExists(f"{what} exists with another configuration ({texts}); use update()")
