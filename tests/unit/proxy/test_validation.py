from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import check_message, group_name, topic_name
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import Message, Resource

CONFIG = ProxyConfig(body_bytes_max=100, properties_max=3, properties_bytes_max=200)


def good() -> Any:
    message = Message(body=b"body", user_properties={"name": "value"})
    message.topic.name = "topic"
    system = message.system_properties
    system.message_id, system.tag, system.message_group = "id", "tag", "group"
    system.keys.extend(["one", "two"])
    return message


def test_a_good_message_is_accepted() -> None:
    message = good()
    message.user_properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "60"
    check_message(message, CONFIG)


def _set(name: str, value: object) -> Callable[[Any], None]:
    return lambda message: setattr(message.system_properties, name, value)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_set("message_id", "  "), Code.ILLEGAL_MESSAGE_ID),
        (_set("message_id", "a\x02b"), Code.ILLEGAL_MESSAGE_ID),
        (_set("tag", "a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (_set("tag", " "), Code.ILLEGAL_MESSAGE_TAG),
        (_set("tag", "a\nb"), Code.ILLEGAL_MESSAGE_TAG),
        (_set("message_group", "x" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (_set("message_group", "\x7f"), Code.ILLEGAL_MESSAGE_GROUP),
        (lambda message: message.system_properties.keys.append(" "), Code.ILLEGAL_MESSAGE_KEY),
        (lambda message: setattr(message, "body", b""), Code.MESSAGE_BODY_EMPTY),
        (lambda message: setattr(message, "body", bytes(101)), Code.MESSAGE_BODY_TOO_LARGE),
        (
            lambda message: message.user_properties.update({"TAGS": "x"}),
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
        (
            lambda message: message.user_properties.update({"a": "\x02TAGS\x01x"}),
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
        (
            lambda message: message.user_properties.update(dict.fromkeys("abc", "")),
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
        ),
        (
            lambda message: message.user_properties.update({"a": "é" * 100}),
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
        ),
    ],
)
def test_a_bad_message_is_refused_with_its_code(spoil: Callable[[Any], None], code: Code) -> None:
    message = good()
    spoil(message)
    with pytest.raises(Refusal) as refused:
        check_message(message, CONFIG)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 128, "TBW102", "rmq_sys_x", "../x"])
def test_bad_topics_are_refused(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        topic_name(Resource(name=name))
    assert refused.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "CID_RMQ_SYS_x"])
def test_bad_groups_are_refused(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        group_name(Resource(name=name))
    assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP
