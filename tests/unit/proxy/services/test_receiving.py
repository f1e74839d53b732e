"""Messages that were popped for a call that ends before they are written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.pop import ChangeInvisibleTimeResponse, PopResponse
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.model import properties as names
from rocketpost.model.route import BrokerData, QueueData, TopicRoute
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.calls import Call
from rocketpost.proxy.renewal import Renewals
from rocketpost.proxy.services.receiving import ReceiveMethods
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.messages import message_class
from rocketpost.testing.waiting import settle, until

HOST = pack_host("127.0.0.1", 10911)


def stored(offset: int, tag: str) -> bytes:
    record = Record(
        size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=offset, position=offset * 100,
        sys_flag=0, born_ms=1, born_host_bytes=HOST, store_ms=2, store_host_bytes=HOST,
        reconsume_times=0, prepared_position=0, body=b"x", topic="T",
        properties_bytes=encode_properties({names.TAGS: tag, names.UNIQUE_KEY: str(offset)}),
    )  # fmt: skip
    return b"".join(encode_record(record))


class Broker:
    """A broker that pops three messages and does not answer acknowledgements."""

    def __init__(self) -> None:
        self.returned: list[int] = []
        self.acknowledging = asyncio.Event()

    async def call(self, broker: str, code: int, header: Any = None, **options: Any) -> Any:
        if code == RequestCode.POP_MESSAGE:
            head = PopResponse(pop_time=1, invisible_time=60_000, revive_qid=0, rest_num=0)
            body = stored(0, "A") + stored(1, "B") + stored(2, "A")
            return SimpleNamespace(code=0, read=lambda kind: head, body=body)
        if code == RequestCode.ACK_MESSAGE:
            self.acknowledging.set()
            await asyncio.Event().wait()
        assert code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        self.returned.append(header.offset)
        answer = ChangeInvisibleTimeResponse(pop_time=2, invisible_time=1000, revive_qid=0)
        return SimpleNamespace(read=lambda kind: answer)

    def link(self, identity: Any, on_request: Any) -> Broker:
        return self

    async def group(self, group: str) -> None:
        return None

    async def route(self, topic: str) -> TopicRoute:
        queues = QueueData(broker_name="a", perm=6, read_queue_nums=1, write_queue_nums=1)
        brokers = [BrokerData(broker_name="a", broker_addrs={0: "a:1"}, cluster="C")]
        return TopicRoute(broker_datas=brokers, queue_datas=[queues])

    def close(self) -> None: ...


async def test_all_messages_of_a_call_that_ends_while_one_is_checked_are_returned() -> None:
    broker, config = Broker(), ProxyConfig()
    backend = cast(Backend, broker)
    methods = ReceiveMethods(backend, Renewals(backend, config), config)
    client = SimpleNamespace(link=broker, is_closed=False, is_gone=False)
    call = cast(Call, SimpleNamespace(client=client, seconds_left=None))
    request = message_class("ReceiveMessageRequest")()
    request.group.name, request.message_queue.topic.name = "G", "T"
    request.filter_expression.expression = "A"
    request.batch_size = 3
    written: list[Any] = []

    async def write(answer: Any) -> None:
        written.append(answer)

    receiving = asyncio.ensure_future(methods.receive(call, request, write))
    await until(broker.acknowledging.is_set)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await settle()
    assert written == []
    assert sorted(broker.returned) == [0, 1, 2]
