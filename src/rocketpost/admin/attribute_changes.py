"""Changes of the attributes of topics and groups, as command lines and files state them. Pure.

A change is a name with a sign: ``+name`` sets the attribute, ``-name`` removes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from rocketpost.admin.command import Failure
from rocketpost.client.admin.changes import changed_attributes


def parse_attributes(text: str) -> dict[str, str]:
    """Parse ``+name=value,-name``.

    Raises:
        BadParameter: The text has another form.
    """
    changes: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if part[0] not in "+-" or len(name) < 2 or (part[0] == "+") != bool(equals):
            raise click.BadParameter(f"{part!r} is neither +name=value nor -name")
        changes[name] = value
    return changes


def sign_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a file as changes; a name without a sign is set."""
    return {name if name[:1] in "+-" else f"+{name}": value for name, value in attributes.items()}


def merge_attributes(
    address: str, owner: str, present: Mapping[str, str], changes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of a topic or group after some changes.

    Args:
        address: The broker, for error messages.
        owner: The topic or group, for error messages.
        present: The attributes that it has.
        changes: Names with their signs, and values.

    Raises:
        Failure: An attribute that is not set would be removed.
    """
    values = {name[1:]: None if name.startswith("-") else value for name, value in changes.items()}
    for name, value in values.items():
        if value is None and name not in present:
            raise Failure(
                f"{address}: the attribute {name} of the {owner} is not set, so it cannot be "
                "removed"
            )
    return changed_attributes(present, values)


def attribute_values(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return a change as the value of each attribute afterwards; None if it is removed."""
    return {name: after.get(name) for name in before.keys() | after.keys()}
