from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketpost.codec.bodies.pop import decode_batch_ack
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import TopicNotExist
from rocketpost.codec.headers.pop import Receipt
from rocketpost.proxy.ack_batches import SPAN_MAX, AckBatches
from rocketpost.proxy.gathering import Gathering
from rocketpost.proxy.handles import ReceiptHandle
from rocketpost.proxy.popped import Taken


class Broker:
    """A link that notes what it is asked, and refuses topics that do not exist."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Any, bytes]] = []

    async def call(self, broker: str, code: int, header: Any = None, **options: Any) -> Any:
        assert broker == "broker-a"
        self.asked.append((code, header, options.get("body", b"")))
        topic = header.topic if header is not None else decode_batch_ack(options["body"]).acks[0].t
        if topic == "gone":
            raise TopicNotExist("no such topic")


def taken(offset: int, *, start: int = 100, queue: int = 0, topic: str = "topic") -> Taken:
    receipt = Receipt(start, 5, 60_000, 1, 0, "broker-a", queue, offset)
    return Taken("group", topic, ReceiptHandle(receipt, 7))


async def test_acknowledgements_that_come_together_are_one_request() -> None:
    broker, batches = Broker(), AckBatches(Gathering())
    wanted = [taken(100), taken(103), taken(7, start=7, queue=2)]
    await asyncio.gather(*(batches.acknowledge(broker, each) for each in wanted))  # type: ignore[arg-type]
    [(code, _, body)] = broker.asked
    assert code == RequestCode.BATCH_ACK_MESSAGE
    found = {
        (ack.q, offset)
        for ack in decode_batch_ack(body).acks
        for offset in range(200)
        if offset in ack.offsets
    }
    assert found == {(0, 100), (0, 103), (2, 7)}


async def test_a_single_one_is_sent_as_such() -> None:
    broker, batches = Broker(), AckBatches(Gathering())
    await batches.acknowledge(broker, taken(101))  # type: ignore[arg-type]
    assert [code for code, _, _ in broker.asked] == [RequestCode.ACK_MESSAGE]


async def test_a_forged_handle_does_not_make_a_huge_request() -> None:
    broker, batches = Broker(), AckBatches(Gathering())
    forged = [taken(100 + SPAN_MAX), taken(10**17), taken(99)]
    await asyncio.gather(*(batches.acknowledge(broker, each) for each in forged))  # type: ignore[arg-type]
    assert [code for code, _, _ in broker.asked] == [RequestCode.ACK_MESSAGE] * 3


async def test_a_refusal_reaches_those_whom_it_concerns() -> None:
    broker, batches = Broker(), AckBatches(Gathering())
    both = [taken(100, topic="gone"), taken(101, topic="gone"), taken(100), taken(101)]
    results = await asyncio.gather(
        *(batches.acknowledge(broker, each) for each in both),  # type: ignore[arg-type]
        return_exceptions=True,
    )
    assert [type(result) for result in results[:2]] == [TopicNotExist] * 2
    assert results[2:] == [None, None]


async def test_without_gathering_each_is_sent_alone() -> None:
    broker, batches = Broker(), AckBatches(None)
    await asyncio.gather(*(batches.acknowledge(broker, taken(offset)) for offset in (100, 101)))  # type: ignore[arg-type]
    assert [code for code, _, _ in broker.asked] == [RequestCode.ACK_MESSAGE] * 2
    with pytest.raises(TopicNotExist):
        await batches.acknowledge(broker, taken(100, topic="gone"))  # type: ignore[arg-type]
