"""JSON bodies about consumer groups: the table of a broker, lists of names, subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.model.group import GroupChange, GroupConfig, Subscription
from rocketpost.model.topic import DataVersion


class GroupTableBody(msgspec.Struct, rename="camel", kw_only=True):
    """Every group of a broker, the topics forbidden to each, and the table's version."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, GroupConfig] = {}


class GroupNames(msgspec.Struct, rename="camel"):
    """The groups that read a topic."""

    group_list: list[str] = []


class GroupForbidden(msgspec.Struct, rename="camel", kw_only=True):
    """A group's permission to read a topic."""

    group: str
    readable: bool
    topic: str


class GroupSubscription(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A group's subscription to a topic; a group without one is not online."""

    group: str
    subscription_data: Subscription | None = None
    topic: str | None = None


class _GroupChanges(msgspec.Struct, rename="camel"):
    group_config_list: list[GroupChange] = []


def encode_group_table(body: GroupTableBody) -> bytes:
    """Return the text of a group table."""
    return encode(body)


def decode_group_table(data: bytes | memoryview) -> GroupTableBody:
    """Read a group table, from the wire or from a file.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, GroupTableBody)


def decode_group_config(data: bytes | memoryview) -> GroupConfig:
    """Read one group's configuration.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, GroupConfig)


def decode_group_change(data: bytes | memoryview) -> GroupChange:
    """Read the group of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, GroupChange)


def decode_group_changes(data: bytes | memoryview) -> list[GroupChange]:
    """Read the groups of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.

    Raises:
        RemoteProtocolError: The body is not a list of groups.
    """
    return decode_body(data, _GroupChanges).group_config_list


def encode_group_configs(configs: Iterable[GroupConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""
    return encode({"groupConfigList": list(configs)})
