"""Messages whose properties do not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpost.model.route import BrokerData, QueueData, TopicRoute
from rocketpost.proxy.backend import Backend, Identity
from rocketpost.proxy.calls import Call
from rocketpost.proxy.clients import ClientTable
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.services.sending import SendMethods
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import message_class


class Brokers:
    """The brokers of a topic without a type."""

    async def topic(self, topic: str) -> None:
        return None

    async def route(self, topic: str) -> TopicRoute:
        queues = QueueData(broker_name="a", perm=6, read_queue_nums=1, write_queue_nums=1)
        brokers = [BrokerData(broker_name="a", broker_addrs={0: "a:1"}, cluster="C")]
        return TopicRoute(broker_datas=brokers, queue_datas=[queues])


@pytest.mark.parametrize("count", [1, 2])
async def test_properties_that_are_too_long_are_named_alone_and_in_a_batch(count: int) -> None:
    config = ProxyConfig(checks_types=False)
    backend = cast(Backend, Brokers())
    methods = SendMethods(backend, ClientTable(backend, config), config)
    client: Any = SimpleNamespace(
        identity=Identity("C", ("127.0.0.1", 1), "PYTHON", ""), note_topic=lambda topic: False
    )
    request = message_class("SendMessageRequest")()
    for number in range(count):
        message = request.messages.add(body=b"x")
        message.topic.name = "T"
        message.system_properties.message_id = str(number)
        message.system_properties.trace_context = "x" * 40_000
    with pytest.raises(Refusal) as refused:
        await methods.send(cast(Call, SimpleNamespace(client=client)), request)
    assert refused.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
