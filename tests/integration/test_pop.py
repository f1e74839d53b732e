"""Popping from a real broker: shared work, receipts, waiting, and kill -9 at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rocketpost.codec.bodies.pop import AckSet, BatchAck, encode_batch_ack, encode_bits
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.offset import CloneOffset, ResetOffset, UpdateOffset
from rocketpost.codec.headers.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    PopResponse,
    Receipt,
    parse_receipt,
    parse_start_offsets,
    real_topic,
)
from rocketpost.codec.record import Record, decode_records
from rocketpost.errors import ConnectionLost, RequestTimeout
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.process import ServerProcess, free_port

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

READY = r"The broker\[(?P<name>[^,]+), (?P<address>[^\]]+)\] boot success"


class Got(NamedTuple):
    record: Record
    receipt: Receipt

    @property
    def name(self) -> str:
        return self.record.properties["UNIQ_KEY"]


class Link(BrokerLink):
    """A peer that pops."""

    async def ask(self, code: int, header: msgspec.Struct | None, body: bytes = b"") -> Command:
        fields = to_fields(header) if header is not None else {}
        return await self._connection.request(code, fields=fields, body=body, timeout=20)

    async def pop(
        self, *, count: int = 32, invisible_ms: int = 60_000, poll_ms: int = 0, exp: str = "*"
    ) -> list[Got]:
        header = PopMessage(
            consumer_group="g",
            topic="T",
            queue_id=-1,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=time.time_ns() // 1_000_000,
            exp_type="TAG",
            exp=exp,
        )
        answer = await self.ask(RequestCode.POP_MESSAGE, header)
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        answer.raise_for_code()
        head = answer.read(PopResponse)
        starts = parse_start_offsets(head.start_offset_info or "")
        return [
            Got(record, _receipt(head, starts, record)) for record in decode_records(answer.body)
        ]

    async def ack(self, got: Got) -> None:
        receipt = got.receipt
        header = AckMessage(
            consumer_group="g",
            topic=real_topic(receipt.retry, "g", "T"),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        (await self.ask(RequestCode.ACK_MESSAGE, header)).raise_for_code()

    async def change(self, got: Got, invisible_ms: int) -> Got:
        receipt = got.receipt
        header = ChangeInvisibleTime(
            consumer_group="g",
            topic=real_topic(receipt.retry, "g", "T"),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=invisible_ms,
        )
        answer = await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        answer.raise_for_code()
        head = answer.read(ChangeInvisibleTimeResponse)
        new = receipt._replace(
            start_offset=receipt.offset,
            pop_ms=head.pop_time,
            invisible_ms=head.invisible_time,
            revive_queue=head.revive_qid,
        )
        return got._replace(receipt=new)


def _receipt(head: PopResponse, starts: dict[tuple[int, int], int], record: Record) -> Receipt:
    text = record.properties.get("POP_CK")
    if text is not None:
        return parse_receipt(text)
    return Receipt(
        starts[0, record.queue_id],
        head.pop_time,
        head.invisible_time,
        head.revive_qid,
        0,
        "popping",
        record.queue_id,
        record.queue_offset,
    )


class Broker:
    def __init__(self, directory: Path, **settings: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "popping",
            "storePathRootDir": str(directory / "store"),
            **SMALL_STORE,
            **settings,
        }
        path = directory / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self.process = ServerProcess(["mqbroker", "-c", str(path)], ready=READY)

    async def connect(self) -> Link:
        return await Link.connect(self.address)


async def send(link: Link, names: list[str], *, tag: str = "A") -> None:
    sending = [
        link.send("T", at % 2, [SendPart(b"body", {"UNIQ_KEY": name, "TAGS": tag})], queue_nums=2)
        for at, name in enumerate(names)
    ]
    for answer in await asyncio.gather(*sending):
        answer.raise_for_code()


@pytest.fixture(params=FLUSH_MODES)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path, flushDiskType=request.param)
    with broker.process:
        yield broker


async def test_receipts_work_over_the_wire(broker: Broker) -> None:
    link = await broker.connect()
    names = [f"n{at}" for at in range(20)]
    await send(link, names)
    got = await link.pop(invisible_ms=1500)
    assert sorted(each.name for each in got) == sorted(names)
    assert await link.pop() == []
    by_name = {each.name: each for each in got}
    await link.ack(by_name["n0"])
    kept = await link.change(by_name["n1"], 60_000)
    starts = {(each.receipt.queue_id, each.receipt.start_offset): each for each in got[2:]}
    batch = [
        AckSet(
            b=encode_bits(start, [each.receipt.offset for each in got if each.name == name]),
            c="g",
            pt=some.receipt.pop_ms,
            q=queue_id,
            so=start,
            t="T",
        )
        for (queue_id, start), some in starts.items()
        for name in names[2:18]
        if by_name[name].receipt.queue_id == queue_id
    ]
    answer = await link.ask(
        RequestCode.BATCH_ACK_MESSAGE, None, encode_batch_ack(BatchAck(acks=batch))
    )
    answer.raise_for_code()
    again = await link.pop(poll_ms=5000)
    while len(again) < 2:
        again += await link.pop(poll_ms=5000)
    assert sorted(each.name for each in again) == ["n18", "n19"]
    assert all(each.record.topic == "T" and each.receipt.retry == 1 for each in again)
    assert all(each.record.reconsume_times == 1 for each in again)
    for each in [*again, kept]:
        await link.ack(each)
    assert await link.pop() == []
    link.close()


async def test_waiting_pops_share_what_arrives(broker: Broker) -> None:
    links = [await broker.connect() for _ in range(5)]
    await send(links[0], ["first"])
    [first] = await links[0].pop()
    await links[0].ack(first)
    waiting = [asyncio.ensure_future(link.pop(count=1, poll_ms=10_000)) for link in links]
    await _until_waiting(links[0], 5)
    notice = Notification(consumer_group="g", topic="T", queue_id=-1, poll_time=10_000)
    noticed = asyncio.ensure_future(links[0].ask(RequestCode.NOTIFICATION, notice))
    names = [f"n{at}" for at in range(5)]
    await send(links[1], names)
    got = await asyncio.gather(*waiting)
    assert sorted(each.name for one in got for each in one) == names
    await send(links[1], ["last"])
    assert (await noticed).read(dict[str, str])["hasMsg"] == "true"
    peek = PeekMessage(consumer_group="g", topic="T", queue_id=-1, max_msg_nums=5)
    answer = await links[0].ask(RequestCode.PEEK_MESSAGE, peek)
    assert [each.properties["UNIQ_KEY"] for each in decode_records(answer.body)] == ["last"]
    assert await links[0].pop(exp="B") == []
    for link in links:
        link.close()


def _reset() -> tuple[int, msgspec.Struct]:
    header = ResetOffset(topic="T", group="g", timestamp=0)
    return RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header


def _set() -> tuple[int, msgspec.Struct]:
    header = UpdateOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=0)
    return RequestCode.UPDATE_CONSUMER_OFFSET, header


def _clone() -> tuple[int, msgspec.Struct]:
    header = CloneOffset(src_group="fresh", dest_group="g", topic="T")
    return RequestCode.CLONE_GROUP_OFFSET, header


async def test_a_waiting_pop_gets_messages_after_the_group_is_set_back(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with broker.process:
        link, other = await broker.connect(), await broker.connect()
        await send(link, ["only"])
        stand = UpdateOffset(consumer_group="fresh", topic="T", queue_id=0, commit_offset=0)
        (await other.ask(RequestCode.UPDATE_CONSUMER_OFFSET, stand)).raise_for_code()
        [got] = await link.pop()
        for back in (_reset, _set, _clone):
            await link.ack(got)
            waiting = asyncio.ensure_future(link.pop(poll_ms=15_000))
            await _until_waiting(other, 1)
            (await other.ask(*back())).raise_for_code()
            popped = await waiting
            assert [each.name for each in popped] == ["only"], back.__name__
            [got] = popped
        link.close()
        other.close()


async def _until_waiting(link: Link, count: int) -> None:
    info = PollingInfo(consumer_group="g", topic="T", queue_id=-1)
    async with asyncio.timeout(5):
        while True:
            answer = await link.ask(RequestCode.POLLING_INFO, info)
            if answer.read(dict[str, str])["pollingNum"] == str(count):
                return
            await asyncio.sleep(0.01)


async def test_invalid_pops_are_refused(broker: Broker) -> None:
    link = await broker.connect()
    await send(link, ["a"])
    good = PopMessage(
        consumer_group="g", topic="T", queue_id=-1, max_msg_nums=1, invisible_time=1, poll_time=0
    )
    for change, code in (
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"attempt_id": "x" * 300}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER),
        ({"exp_type": "SQL92", "exp": "a="}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        answer = await link.ask(RequestCode.POP_MESSAGE, msgspec.structs.replace(good, **change))
        assert answer.code == code
    ack = AckMessage(consumer_group="g", topic="T", queue_id=0, extra_info="no receipt", offset=0)
    for change, code in (
        ({}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 99}, ResponseCode.NO_MESSAGE),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
    ):
        answer = await link.ask(RequestCode.ACK_MESSAGE, msgspec.structs.replace(ack, **change))
        assert answer.code == code
    answer = await link.ask(RequestCode.BATCH_ACK_MESSAGE, None, b'{"acks":[]}')
    assert answer.code == ResponseCode.NO_MESSAGE
    link.close()


async def test_killed_between_pop_and_ack_nothing_is_lost(broker: Broker) -> None:
    rng = random.Random(4)
    names = [f"n{at}" for at in range(600)]
    link = await broker.connect()
    await send(link, names)
    link.close()
    acked: set[str] = set()
    handed: Counter[str] = Counter()
    unsure: set[str] = set()

    async def work(until: float) -> None:
        link = await broker.connect()
        try:
            while time.monotonic() < until:
                for got in await link.pop(count=5, invisible_ms=2000, poll_ms=100):
                    assert got.name not in acked, "acknowledged, and handed out again"
                    handed[got.name] += 1
                    if rng.random() < 0.6:
                        unsure.add(got.name)
                        await link.ack(got)
                        acked.add(got.name)
        except (ConnectionLost, RequestTimeout):
            pass  # the broker was killed; what was not answered is unsure
        finally:
            link.close()

    kills = 4
    for _ in range(kills):
        until = time.monotonic() + 30
        workers = [asyncio.ensure_future(work(until)) for _ in range(4)]
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        broker.process.kill()
        await asyncio.gather(*workers)
        broker.process.start()
    deadline = time.monotonic() + 60
    link = await broker.connect()
    while not acked | unsure >= set(names):
        assert time.monotonic() < deadline, "messages were lost"
        for got in await link.pop(invisible_ms=5000, poll_ms=500):
            assert got.name not in acked
            await link.ack(got)
            acked.add(got.name)
    link.close()
    # A message comes again at most once a round in which it was not acknowledged.
    assert max(handed.values()) <= 2 * (kills + 1)


async def order_pop(
    link: Link, *, count: int = 32, invisible_ms: int = 60_000, poll_ms: int = 0, attempt: str = ""
) -> tuple[list[Got], PopResponse | None]:
    header = PopMessage(
        consumer_group="g",
        topic="T",
        queue_id=0,
        max_msg_nums=count,
        invisible_time=invisible_ms,
        poll_time=poll_ms,
        born_time=time.time_ns() // 1_000_000,
        order=True,
        attempt_id=attempt or None,
    )
    answer = await link.ask(RequestCode.POP_MESSAGE, header)
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return [], None
    answer.raise_for_code()
    head = answer.read(PopResponse)
    starts = parse_start_offsets(head.start_offset_info or "")
    records = decode_records(answer.body)
    return [Got(record, _receipt(head, starts, record)) for record in records], head


@pytest.mark.long
async def test_order_holds_through_kill_9(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with broker.process:
        link = await broker.connect()
        for number in range(6):
            answer = await link.send("T", 0, [SendPart(b"%d" % number, {})], queue_nums=2)
            answer.raise_for_code()
        batch, head = await order_pop(link, count=3, invisible_ms=60_000, attempt="first")
        assert head is not None
        assert head.revive_qid == 999
        assert [bytes(got.record.body) for got in batch] == [b"0", b"1", b"2"]
        await link.ack(batch[1])
        broker.process.kill()
        await asyncio.to_thread(broker.process.start)
        link = await broker.connect()
        # The queue is still blocked, the same attempt gets what is left, others wait for it.
        assert (await order_pop(link))[0] == []
        again, head = await order_pop(link, count=3, invisible_ms=3000, attempt="first")
        assert [bytes(got.record.body) for got in again] == [b"0", b"2", b"3"]
        waiting = asyncio.ensure_future(order_pop(link, poll_ms=15_000))
        await link.ack(again[0])
        await link.ack(again[1])
        later, head = await waiting
        assert head is not None
        assert [bytes(got.record.body) for got in later] == [b"3", b"4", b"5"]
        assert head.order_count_info == f"0 qo0%{later[0].record.queue_offset} 1;0 0 0"
        shorter = await link.change(later[2], 0)
        assert shorter.receipt.revive_queue == 999
        await link.ack(later[0])
        await link.ack(later[1])
        [last], _ = await order_pop(link, poll_ms=5000)
        assert bytes(last.record.body) == b"5"
        await link.ack(last)
        broker.process.kill()
        await asyncio.to_thread(broker.process.start)
        link = await broker.connect()
        assert (await order_pop(link))[0] == []


COUNT = 300


@pytest.mark.long
async def test_order_and_acks_survive_kill_9_at_any_moment(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    broker = Broker(tmp_path)
    acked: list[int] = []
    with broker.process:
        link = await broker.connect()
        for number in range(COUNT):
            answer = await link.send("T", 0, [SendPart(b"%d" % number, {})], queue_nums=2)
            answer.raise_for_code()

        async def consume() -> None:
            while len(acked) < COUNT:
                got, _ = await order_pop(link, count=chance.randint(1, 6), invisible_ms=300)
                bodies = [int(bytes(each.record.body)) for each in got]
                # What was acknowledged never comes again, and nothing overtakes what is left.
                assert not set(bodies) & set(acked), (seed, bodies)
                left = [number for number in range(COUNT) if number not in acked]
                assert bodies == left[: len(bodies)], (seed, bodies, left[:10])
                for each, body in zip(got, bodies, strict=True):
                    if chance.random() < 0.8:
                        await link.ack(each)
                        acked.append(body)
                if not got:
                    await asyncio.sleep(0.02)

        for _ in range(6):
            working = asyncio.ensure_future(consume())
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            broker.process.kill()
            with contextlib.suppress(ConnectionLost, RequestTimeout):
                await working
            # An ack that was not answered may count, or not.
            await asyncio.to_thread(broker.process.start)
            link = await broker.connect()
            await settle(link, acked)
        await consume()
    assert sorted(acked) == list(range(COUNT))


async def settle(link: Link, acked: list[int]) -> None:
    """Learn whether an ack counts that was on its way when the broker died."""
    got, _ = await order_pop(link, count=32, invisible_ms=0, poll_ms=3000)
    there = [int(bytes(each.record.body)) for each in got]
    looked_at = range(there[-1] if there else COUNT)
    missing = [number for number in looked_at if number not in {*acked, *there}]
    assert len(missing) <= 1
    acked += missing
