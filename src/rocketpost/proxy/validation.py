"""Checks of the names and values in calls, with the codes that clients know."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Final

from rocketpost.model import properties as names
from rocketpost.model.names import (
    SYSTEM_GROUP_PREFIX,
    group_problem,
    is_system_topic,
    topic_problem,
)
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code

_has_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search

RESERVED: Final = names.RESERVED | {"BORN_TIMESTAMP", "DUP_INFO"}
"""Properties that clients do not see. Clients may set only one of them."""
_SETTABLE: Final = names.TRANSACTION_IMMUNITY
"""Official clients have no other way to say how long a transaction may take."""


def topic_name(resource: Any) -> str:
    """Return the topic that a resource names.

    Raises:
        Refusal: The name is illegal, or reserved for the system.
    """
    name: str = resource.name
    problem = _problem_of_topic(name)
    if problem is not None:
        raise Refusal(Code.ILLEGAL_TOPIC, problem)
    return name


@functools.lru_cache(maxsize=4096)
def _problem_of_topic(name: str) -> str | None:
    problem = topic_problem(name)
    if problem is None and is_system_topic(name):
        problem = f"the topic {name} is reserved for the system"
    return problem


def group_name(resource: Any) -> str:
    """Return the consumer group that a resource names.

    Raises:
        Refusal: The name is illegal, or reserved for the system.
    """
    name: str = resource.name
    problem = _problem_of_group(name)
    if problem is not None:
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return name


@functools.lru_cache(maxsize=4096)
def _problem_of_group(name: str) -> str | None:
    problem = group_problem(name)
    if problem is None and name.startswith(SYSTEM_GROUP_PREFIX):
        problem = f"the group {name} is reserved for the system"
    return problem


def check_message(message: Any, config: ProxyConfig) -> None:
    """Check a message that a client sends.

    Raises:
        Refusal: A part of it breaks a rule.
    """
    system = message.system_properties
    if not system.message_id.strip():
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    if _has_control(system.message_id):
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "the message id has a control character")
    if not message.body and config.refuses_empty_bodies:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(message.body) > config.body_bytes_max:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(message.body)} bytes; at most {config.body_bytes_max} are allowed",
        )
    if system.HasField("tag"):
        _check_tag(system.tag)
    for key in system.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "a key")
    if system.HasField("message_group"):
        _check_group(system.message_group, config)
    _check_properties(message, config)


def _check_tag(tag: str) -> None:
    _check_text(tag, Code.ILLEGAL_MESSAGE_TAG, "the tag")
    if "|" in tag:
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, f"the tag {tag[:99]!r} has a bar")


def _check_group(group: str, config: ProxyConfig) -> None:
    _check_text(group, Code.ILLEGAL_MESSAGE_GROUP, "the message group")
    if len(group.encode()) >= config.message_group_bytes_max:
        raise Refusal(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group must be shorter than {config.message_group_bytes_max} bytes",
        )


def _check_text(text: str, code: Code, what: str) -> None:
    if text and not text.strip():
        raise Refusal(code, f"{what} is blank")
    if _has_control(text):
        raise Refusal(code, f"{what} has a control character")


def _check_properties(message: Any, config: ProxyConfig) -> None:
    properties, system = message.user_properties, message.system_properties
    if len(properties) > config.properties_max:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} properties; {config.properties_max} are allowed",
        )
    size = _bytes_of((system.tag, *system.keys))
    for name, value in properties.items():
        if name in RESERVED and name != _SETTABLE:
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name} is used by the system; choose another name",
            )
        if not name or _has_control(name) or _has_control(value):
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:99]!r} has no name, or a control character",
            )
        size += _bytes_of((name, value))
    if size > config.properties_bytes_max:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys take {size} bytes; at most {config.properties_bytes_max} "
            "are allowed",
        )


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
