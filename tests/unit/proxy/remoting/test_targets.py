from __future__ import annotations

import json
from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.errors import RemoteProtocolError
from rocketpost.proxy.remoting.targets import FOR_ALL, FOR_ANY, broker_of, topic_of

QUEUES = [{"brokerName": name, "queueId": 0, "topic": "T"} for name in ("a", "b")]


def request(code: RequestCode, body: Any = None, **fields: str) -> Command:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return Command(code=code, text_fields=fields, body=data)


def lock(queues: list[dict[str, object]], code: RequestCode = RequestCode.LOCK_BATCH_MQ) -> Command:
    return request(code, {"clientId": "c", "consumerGroup": "g", "mqSet": queues})


@pytest.mark.parametrize(
    ("command", "broker"),
    [
        (request(RequestCode.SEND_MESSAGE_V2, n="a", b="T"), "a"),
        (request(RequestCode.SEND_BATCH_MESSAGE, n="a"), "a"),
        (request(RequestCode.SEND_MESSAGE_V2, bname="a"), "a"),
        (request(RequestCode.SEND_MESSAGE_V2, n="", bname="a"), "a"),
        (request(RequestCode.SEND_MESSAGE_V2, b="T"), ""),
        (request(RequestCode.PULL_MESSAGE, bname="a", topic="T"), "a"),
        (request(RequestCode.PULL_MESSAGE, n="a", topic="T"), ""),  # there it is another field
        (request(RequestCode.PULL_MESSAGE, bname=""), ""),
        (lock(QUEUES), "a"),
        (lock(QUEUES[1:], RequestCode.UNLOCK_BATCH_MQ), "b"),
        (lock([]), ""),
        (request(RequestCode.HEART_BEAT, b"{"), ""),  # only the body of a lock is read
    ],
)
def test_a_request_names_its_broker(command: Command, broker: str) -> None:
    assert broker_of(command) == broker


def test_a_lock_that_names_its_broker_is_passed_on_unread() -> None:
    assert broker_of(request(RequestCode.LOCK_BATCH_MQ, b"{", bname="a")) == "a"


def test_a_lock_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        broker_of(request(RequestCode.LOCK_BATCH_MQ, b"{"))


@pytest.mark.parametrize(
    ("command", "topic"),
    [
        (request(RequestCode.SEND_MESSAGE_V2, b="T", topic="other"), "T"),
        (request(RequestCode.SEND_MESSAGE_V2, topic="T"), ""),
        (request(RequestCode.PULL_MESSAGE, topic="T", b="other"), "T"),
        (request(RequestCode.PULL_MESSAGE, {"topic": "T"}), ""),
        (request(RequestCode.QUERY_ASSIGNMENT, {"topic": "T"}), "T"),
        (request(RequestCode.QUERY_ASSIGNMENT, {"topic": "T"}, topic="U"), "U"),
        (request(RequestCode.CHECK_CLIENT_CONFIG, {"subscriptionData": {"topic": "T"}}), "T"),
        (request(RequestCode.CHECK_CLIENT_CONFIG, {"subscriptionData": {}, "topic": "T"}), ""),
        (request(RequestCode.CHECK_CLIENT_CONFIG, {"subscriptionData": "T", "topic": "U"}), "U"),
        (request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g"), ""),
    ],
)
def test_a_request_names_its_topic(command: Command, topic: str) -> None:
    assert topic_of(command) == topic


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b"[]",
        b"7",
        b"null",
        b'{"topic":7}',
        b'{"topic":null}',
        b"{}",
    ],
    ids=range(9),
)
def test_a_body_that_names_no_topic_is_left_to_the_broker(body: bytes) -> None:
    assert topic_of(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body)) == ""


def test_no_request_is_for_all_brokers_and_for_any() -> None:
    assert FOR_ALL.isdisjoint(FOR_ANY)
