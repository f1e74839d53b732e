"""Rights that calls of the gRPC port need: every method has some, as RocketMQ's proxy asks."""

from __future__ import annotations

import pytest

from rocketpost.proxy import rights
from rocketpost.proxy.rights import NEEDED, Right
from rocketpost.proxy.wire import messages

WITHOUT = {
    "Telemetry",  # the settings in it are checked one by one
    "SyncLiteSubscription",  # not served
}


def test_every_method_of_the_protocol_needs_rights() -> None:
    service = messages.POOL.FindServiceByName(messages.SERVICE)
    assert {method.name for method in service.methods} == NEEDED.keys() | WITHOUT


def text(needed: list[Right]) -> str:
    return ", ".join(
        f"{right.kind.value}:{right.name} {'|'.join(action.value for action in right.actions)}"
        for right in needed
    )


BOTH = "Group:G Sub, Topic:T Sub"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("QueryRoute", "Topic:T Pub|Sub"),
        ("SendMessage", "Topic:T Pub, Topic:U Pub"),
        ("RecallMessage", "Topic:T Pub"),
        ("EndTransaction", "Topic:T Pub"),
        ("QueryAssignment", BOTH),
        ("ReceiveMessage", BOTH),
        ("AckMessage", BOTH),
        ("ChangeInvisibleDuration", BOTH),
        ("ForwardMessageToDeadLetterQueue", BOTH),
        ("PullMessage", BOTH),
        ("UpdateOffset", BOTH),
        ("GetOffset", BOTH),
        ("QueryOffset", "Topic:T Sub"),
        ("Heartbeat", "Group:G Sub"),
        ("NotifyClientTermination", "Group:G Sub"),
    ],
)
def test_a_call_needs_these_rights(method: str, expected: str) -> None:
    request = messages.message_class(f"{method}Request")()
    fields = request.DESCRIPTOR.fields_by_name
    if "group" in fields:
        request.group.name = "G"
    if "topic" in fields:
        request.topic.name = "T"
    if "message_queue" in fields:
        request.message_queue.topic.name = "T"
    if method == "SendMessage":
        for topic in ("T", "U", "T"):
            request.messages.add().topic.name = topic
    assert text(NEEDED[method](request)) == expected


def test_a_client_without_a_group_needs_none_to_stay() -> None:
    for method in ("Heartbeat", "NotifyClientTermination"):
        assert NEEDED[method](messages.message_class(f"{method}Request")()) == []


def test_settings_need_the_rights_of_all_topics_that_they_name() -> None:
    publishing = messages.Settings()
    for topic in ("T", "U"):
        publishing.publishing.topics.add().name = topic
    assert text(rights.of_settings(publishing)) == "Topic:T Pub, Topic:U Pub"
    subscribing = messages.Settings()
    subscribing.subscription.group.name = "G"
    subscribing.subscription.subscriptions.add().topic.name = "T"
    assert text(rights.of_settings(subscribing)) == BOTH
