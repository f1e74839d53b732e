"""Attributes in the form of requests, and a check of existing configurations.

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
    """Return the attributes of a new object by name, given as ``name`` or ``+name``.

    Names with a minus sign have nothing to remove and are omitted.
    """
    return {
        name.removeprefix("+"): value
        for name, value in attributes.items()
        if not name.startswith("-")
    }


def changed_attributes(
    present: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """Return ``present`` with ``changes`` applied; None removes an attribute."""
    merged: dict[str, str | None] = {**present, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def sign_attributes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the change from ``present`` to ``wanted`` in the form of a request."""
    changes = {f"-{name}": "" for name in present if name not in wanted}
    for name, value in wanted.items():
        if present.get(name) != value:
            changes[f"+{name}"] = value
    return changes


def check_same(what: str, present: C, wanted: C) -> None:
    """Check that an existing configuration equals the wanted one.

    Raises:
        AlreadyExists: It differs.
    """
    found = differences(present, wanted)
    if found:
        texts = ", ".join(map(str, found))
        raise AlreadyExists(f"{what} exists with another configuration ({texts}); use update()")
