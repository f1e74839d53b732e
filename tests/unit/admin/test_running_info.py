from __future__ import annotations

import pytest

from rocketpost.admin.running_info import (
    decode_running_info,
    rebalance_problems,
    running_info_text,
    same_subscriptions,
    topics_read,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue

# As a Java client writes it: queues are object literals as keys.
BODY = (
    b'{"mqTable":{{"brokerName":"broker-a","queueId":3,"topic":"Demo"}:{"cachedMsgCount":0,'
    b'"commitOffset":1,"droped":false}},"properties":{"language":"JAVA",'
    b'"PROP_CLIENT_VERSION":"V5_3_3"},"statusTable":{"Demo":{"consumeFailedMsgs":2,'
    b'"consumeFailedTPS":0.5,"consumeOKTPS":1.0,"consumeRT":3.25,"pullRT":0.0,"pullTPS":0.0}},'
    b'"subscriptionSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"A || B","subVersion":1,"tagsSet":["A","B"],"topic":"Demo"},'
    b'{"subString":"*","topic":"%RETRY%g"}]}'
)
QUEUE = MessageQueue("broker-a", 3, "Demo")


def test_a_consumer_of_java_is_understood_and_shown() -> None:
    text = running_info_text(decode_running_info(BODY))
    assert "language                                : JAVA" in text
    assert (
        "002 Topic: Demo                                     ClassFilter: false    "
        "SubExpression: A || B"
    ) in text
    assert (
        "Demo                                                              broker-a"
        "                          3     1                   "
    ) in text
    assert "ProcessQueueInfo [cachedMsgCount=0, commitOffset=1, droped=false]" in text
    [rates] = [line.split() for line in text.splitlines() if "3.25" in line]
    assert rates == ["Demo", "0.00", "0.00", "3.25", "1.00", "0.50", "2"]
    assert "#Consumer jstack#" not in text


def test_stacks_are_shown_if_the_consumer_sent_some() -> None:
    info = decode_running_info(b'{"jstack":"main waits"}')
    assert running_info_text(info).endswith("#Consumer jstack#\nmain waits\n")


def test_what_is_no_such_report_is_refused() -> None:
    for body in (b"[]", b'{"mqTable":[1]}', b'{"statusTable":{"T":1}}', b"{"):
        with pytest.raises(RemoteProtocolError):
            decode_running_info(body)


def test_members_must_want_the_same() -> None:
    one, other = decode_running_info(BODY), decode_running_info(BODY.replace(b"A || B", b"A"))
    assert same_subscriptions([one, one])
    assert not same_subscriptions([one, other])
    assert same_subscriptions([])


def test_a_queue_must_have_one_consumer() -> None:
    info, idle = decode_running_info(BODY), decode_running_info(b"{}")
    queues = {"Demo": [QUEUE]}
    assert rebalance_problems({"x": info, "y": idle}, queues) == []
    assert rebalance_problems({"y": idle}, queues) == ["Demo queue 3 of broker-a: no consumer"]
    assert rebalance_problems({"x": info, "y": info}, queues) == [
        "Demo queue 3 of broker-a: 2 consumers (x, y)"
    ]


def test_retry_topics_are_not_among_those_read() -> None:
    assert topics_read([decode_running_info(BODY)]) == ["Demo"]
