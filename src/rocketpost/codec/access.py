"""Users and rules as bodies of requests and answers."""

from __future__ import annotations

from collections.abc import Sequence

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode


def encode_access(value: UserInfo | AclInfo | Sequence[UserInfo] | Sequence[AclInfo]) -> bytes:
    """Return the body for a user, for rules, or for a list of either."""
    return encode(value)


def decode_user(data: bytes | memoryview) -> UserInfo:
    """Read a user.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, UserInfo)


def decode_users(data: bytes | memoryview) -> list[UserInfo]:
    """Read a list of users.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, list[UserInfo])


def decode_rules(data: bytes | memoryview) -> AclInfo:
    """Read the rules of a user.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, AclInfo)


def decode_all_rules(data: bytes | memoryview) -> list[AclInfo]:
    """Read the rules of several users.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, list[AclInfo])
