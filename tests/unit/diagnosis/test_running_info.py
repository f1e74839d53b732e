from __future__ import annotations

import pytest

from diagnosis.samples import RUNNING_INFO
from rocketpost.diagnosis.running_info import (
    decode_running_info,
    find_rebalance_problems,
    have_same_subscriptions,
    list_topics,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue

QUEUE = MessageQueue("broker-a", 3, "Demo")


def test_invalid_reports_are_refused() -> None:
    for body in (b"[]", b'{"mqTable":[1]}', b'{"statusTable":{"T":1}}', b"{"):
        with pytest.raises(RemoteProtocolError):
            decode_running_info(body)


def test_members_must_want_the_same() -> None:
    one, other = (
        decode_running_info(RUNNING_INFO),
        decode_running_info(RUNNING_INFO.replace(b"A || B", b"A")),
    )
    assert have_same_subscriptions([one, one])
    assert not have_same_subscriptions([one, other])
    assert have_same_subscriptions([])


def test_a_queue_must_have_one_consumer() -> None:
    info, idle = decode_running_info(RUNNING_INFO), decode_running_info(b"{}")
    queues = {"Demo": [QUEUE]}
    assert find_rebalance_problems({"x": info, "y": idle}, queues) == []
    assert find_rebalance_problems({"y": idle}, queues) == ["Demo queue 3 of broker-a: no consumer"]
    assert find_rebalance_problems({"x": info, "y": info}, queues) == [
        "Demo queue 3 of broker-a: 2 consumers (x, y)"
    ]


def test_members_that_pop_have_every_queue() -> None:
    popping = decode_running_info(b'{"properties":{"PROP_CONSUME_TYPE":"CONSUME_POP"}}')
    assert find_rebalance_problems({"x": popping, "y": popping}, {"Demo": [QUEUE]}) == []


def test_retry_topics_are_not_among_those_read() -> None:
    assert list_topics([decode_running_info(RUNNING_INFO)]) == ["Demo"]
