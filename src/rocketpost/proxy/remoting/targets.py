"""The broker that a request of a remoting client is for.

A client behind a proxy has one address for all brokers, so its requests have to name theirs, as
those of RocketMQ's clients do from version 5 on: in the field ``bname``, or ``n`` of a send. Some
requests are for any broker of a topic or of a group, and heartbeats are for all.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rocketpost.codec.bodies.client import decode_lock_request
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command

FOR_ALL: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
"""Requests that go to every broker."""
FOR_ANY: Final = frozenset(
    {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    }
)
"""Requests that any broker can serve, preferably one of their topic."""
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_LOCKS: Final = frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ})


def broker_of(command: Command) -> str:
    """Return the broker that a request names; empty if it names none.

    Raises:
        RemoteProtocolError: The body of the request is malformed.
    """
    if command.code in _SENDS and (name := command.fields.get("n")):
        return name
    if name := command.fields.get("bname"):
        return name
    if command.code in _LOCKS:
        queues = decode_lock_request(command.body).mq_set
        return queues[0].broker_name if queues else ""
    return ""


def topic_of(command: Command) -> str:
    """Return the topic that a request names; empty if it names none."""
    fields = command.fields
    if topic := fields.get("b" if command.code in _SENDS else "topic"):
        return topic
    if command.code not in FOR_ANY or not command.body:
        return ""
    try:
        body: Any = json.loads(bytes(command.body))
    except (ValueError, RecursionError):
        return ""  # the broker says what is wrong
    if not isinstance(body, dict):
        return ""
    inner = body.get("subscriptionData")
    topic = (inner if isinstance(inner, dict) else body).get("topic")
    return topic if isinstance(topic, str) else ""
