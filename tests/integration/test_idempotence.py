"""Stored once: sends that are repeated after lost answers, cut connections and killed brokers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpost.client import (
    ConfigError,
    Message,
    MessageRefused,
    Producer,
    ProducerConfig,
    PullConsumer,
    RocketpostError,
    SendResult,
)
from rocketpost.client.blocking import Producer as BlockingProducer
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ProducerFenced
from rocketpost.model.sysflag import TRANSACTION_ROLLBACK
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.fault_proxy import NONE, FaultProxy, InjectedFault
from rocketpost.testing.link import BrokerLink, SendPart

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

TOPIC = "Once"


async def stored(cluster: Cluster, topic: str = TOPIC) -> Counter[bytes]:
    """Return every body in a topic and how often it is there."""
    bodies: Counter[bytes] = Counter()
    async with PullConsumer("readers", name_servers=cluster.addresses) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while (found := await consumer.pull(queue, offset)).messages:
                bodies.update(message.body for message in found.messages)
                offset = found.next_offset
    return bodies


def once(bodies: list[bytes]) -> Counter[bytes]:
    return Counter(dict.fromkeys(bodies, 1))


def config(cluster: Cluster, seconds: float = 20.0, attempt: float = 0.5) -> ProducerConfig:
    return ProducerConfig(
        name_servers=cluster.addresses, send_timeout=seconds, attempt_timeout=attempt
    )


@asynccontextmanager
async def proxied(tmp_path: Path, **settings: str) -> AsyncIterator[tuple[Cluster, FaultProxy]]:
    """A broker that tells its clients the address of a proxy before it."""
    address = "127.0.0.7"
    with Cluster(tmp_path, settings={"brokerIP1": address, **settings}) as cluster:
        host, port = cluster.broker_addresses[0].split(":")
        async with FaultProxy((host, int(port)), listen=(address, int(port))) as proxy:
            yield cluster, proxy


async def test_lost_answers_store_nothing_twice(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (cluster, proxy):
        async with Producer("p", config=config(cluster), idempotent=True) as producer:
            await producer.send(Message(TOPIC, b"first"))
            proxy.fault = InjectedFault(swallow_answers=True)
            futures = [await producer.send_soon(Message(TOPIC, b"%d" % n)) for n in range(50)]
            batch = asyncio.create_task(
                producer.send_batch([Message(TOPIC, b"b%d" % n) for n in range(20)])
            )
            await asyncio.sleep(0.3)
            proxy.fault = NONE
            await proxy.cut()
            results = [*await asyncio.gather(*futures), *await batch]
        assert all(result.duplicate for result in results)
        assert len({(result.queue, result.queue_offset) for result in results}) == 70
        bodies = [b"first", *(b"%d" % n for n in range(50)), *(b"b%d" % n for n in range(20))]
        assert await stored(cluster) == once(bodies)
        offsets = [result.queue_offset for result in results[50:]]
        assert offsets == list(range(offsets[0], offsets[0] + 20))


async def test_ordered_sends_keep_their_order_over_cut_connections(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (cluster, proxy):
        async with Producer("p", config=config(cluster), idempotent=True) as producer:
            await producer.send(Message(TOPIC, b"first", sharding_key="k"))
            futures = []
            for n in range(300):
                if n % 60 == 30:
                    proxy.fault = InjectedFault(cut_answers_after_bytes=500)
                if n % 60 == 50:
                    proxy.fault = NONE
                message = Message(TOPIC, b"%d" % n, sharding_key="k")
                futures.append(await producer.send_soon(message))
                await asyncio.sleep(0)
            results = await asyncio.gather(*futures)
        offsets = [result.queue_offset for result in results]
        assert offsets == list(range(1, 301))
        assert await stored(cluster) == once([b"first", *(b"%d" % n for n in range(300))])


async def test_a_second_run_of_a_named_producer_stores_nothing_twice(tmp_path: Path) -> None:
    bodies = [b"%d" % n for n in range(40)]

    async def run(cluster: Cluster, count: int) -> list[SendResult]:
        async with Producer(
            "p", config=config(cluster), idempotent=True, producer_id="query-1/3", epoch=7
        ) as producer:
            single = [
                await producer.send(Message(TOPIC, body), sequence=n)
                for n, body in enumerate(bodies[:count])
            ]
            batch = [Message(TOPIC, body) for body in bodies[20 : 20 + count]]
            return single + await producer.send_batch(batch, first_sequence=20)

    with Cluster(tmp_path, brokers=2) as cluster:
        for address in cluster.broker_addresses:
            link = await BrokerLink.connect(address)
            await link.create_topic(TOPIC, 4)
            link.close()
        first = await run(cluster, 12)
        assert not any(result.duplicate for result in first)
        for broker in cluster.brokers:
            broker.kill()
            broker.start()
        second = await run(cluster, 20)
        assert [result.duplicate for result in second] == (
            [True] * 12 + [False] * 8 + [True] * 12 + [False] * 8
        )
        for old, new in zip(first[:12] + first[12:], second[:12] + second[20:32], strict=True):
            assert (old.offset_id, old.queue, old.queue_offset, old.message_id) == (
                new.offset_id,
                new.queue,
                new.queue_offset,
                new.message_id,
            )
        assert await stored(cluster) == once(bodies)
        async with Producer(
            "p", config=config(cluster), idempotent=True, producer_id="query-1/3", epoch=8
        ) as later:
            assert await later.last_sequence(TOPIC) is None
            assert not (await later.send(Message(TOPIC, b"next epoch"), sequence=0)).duplicate
            assert await later.last_sequence(TOPIC) == 0
        with pytest.raises(ProducerFenced):
            await run(cluster, 1)


async def test_two_runs_at_the_same_time_store_nothing_twice_however_they_cut_batches(
    tmp_path: Path,
) -> None:
    bodies = [b"%d" % n for n in range(1500)]
    with Cluster(tmp_path, brokers=2) as cluster:
        for address in cluster.broker_addresses:
            link = await BrokerLink.connect(address)
            await link.create_topic(TOPIC, 4)
            link.close()

        def run() -> Producer:
            return Producer("p", config=config(cluster), idempotent=True, producer_id="query-1/4")

        async with run() as one, run() as other:
            for each in (one, other):  # neither sees what the other one sends
                assert await each.were_stored(TOPIC, [0]) == [False]
            for producer, size in ((one, 1000), (other, 700)):
                for first in range(0, len(bodies), size):
                    some = [Message(TOPIC, body) for body in bodies[first : first + size]]
                    await producer.send_batch(some, first_sequence=first)
        assert await stored(cluster) == once(bodies)


async def test_a_message_that_timed_out_keeps_its_number_when_sent_again(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (cluster, proxy):
        short = config(cluster, seconds=0.6, attempt=0.2)
        async with Producer("p", config=short, idempotent=True) as producer:
            await producer.send(Message(TOPIC, b"first"))
            message, batch = Message(TOPIC, b"again"), [Message(TOPIC, b"b%d" % n) for n in (0, 1)]
            proxy.fault = InjectedFault(swallow_answers=True)
            for _ in range(2):
                with pytest.raises(RocketpostError):
                    await producer.send(message)
            with pytest.raises(RocketpostError):
                await producer.send_batch(batch)
            given_up = asyncio.create_task(producer.send(cancelled := Message(TOPIC, b"cancelled")))
            await asyncio.sleep(0.1)
            given_up.cancel()
            await asyncio.wait([given_up])
            proxy.fault = NONE
            await proxy.cut()
            assert (await producer.send(message, timeout=5)).duplicate
            assert all(result.duplicate for result in await producer.send_batch(batch, timeout=5))
            assert (await producer.send(cancelled, timeout=5)).duplicate
            # Its outcome is known now, so that the next send of it is a message of its own.
            assert not (await producer.send(message)).duplicate
        expected = once([b"first", b"b0", b"b1", b"cancelled"]) + Counter({b"again": 2})
        assert await stored(cluster) == expected


@pytest.mark.parametrize("flush", FLUSH_MODES)
async def test_a_broker_that_is_killed_and_comes_back_is_waited_for(
    tmp_path: Path, flush: str
) -> None:
    settings = {"flushDiskType": flush, "flushProducerStateInterval": "100"}
    with Cluster(tmp_path, settings=settings) as cluster:
        async with Producer("p", config=config(cluster, 40), idempotent=True) as producer:
            sent: list[bytes] = []
            futures = []
            for n in range(400):
                sent.append(b"%d" % n)
                futures.append(await producer.send_soon(Message(TOPIC, sent[-1])))
                if n in (100, 250):
                    await asyncio.sleep(0.2)
                    cluster.brokers[0].kill()
                    restart = asyncio.create_task(asyncio.to_thread(cluster.brokers[0].start))
                elif n in (102, 252):
                    await restart
            await asyncio.gather(*futures)
        assert await stored(cluster) == once(sent)


async def test_another_broker_is_used_only_for_messages_that_were_never_sent(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=2) as cluster:
        for address in cluster.broker_addresses:
            link = await BrokerLink.connect(address)
            await link.create_topic(TOPIC, 2)
            link.close()
        async with Producer("p", config=config(cluster), idempotent=True) as producer:
            first = await producer.send(Message(TOPIC, b"first"))
            dead = int(first.queue.broker_name.removeprefix("broker-"))
            cluster.brokers[dead].kill()
            assert producer._session is not None
            async with asyncio.timeout(10):
                while producer._session.connector.peek(cluster.broker_addresses[dead]) is not None:
                    await asyncio.sleep(
                        0.01
                    )  # what leaves before it is noticed may be stored there
            results = [await producer.send(Message(TOPIC, b"%d" % n)) for n in range(20)]
            assert {result.queue.broker_name for result in results} == {f"broker-{1 - dead}"}
            assert not any(result.duplicate for result in results)
            cluster.brokers[dead].start()
        async with Producer(
            "p", config=config(cluster, 2.0), idempotent=True, producer_id="mine"
        ) as named:
            await named.send(Message(TOPIC, b"named"), sequence=0)
            cluster.brokers[dead].kill()
        async with Producer(
            "p", config=config(cluster, 2.0), idempotent=True, producer_id="mine"
        ) as named:
            # The one that cannot be asked may have it.
            if dead in [int(q.broker_name[-1]) for q in await named.queues(TOPIC)]:
                with pytest.raises(RocketpostError):
                    await named.send(Message(TOPIC, b"named"), sequence=0)
        cluster.brokers[dead].start()
        assert await stored(cluster) == once([b"first", b"named", *(b"%d" % n for n in range(20))])


@pytest.mark.long
async def test_unique_keys_are_enough_where_a_topic_asks_for_it(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        link = await BrokerLink.connect(cluster.broker_addresses[0])
        await link.create_topic(TOPIC, 2, attributes="+dedup.seconds=3600")
        await link.create_topic("Plain", 2)
        part = SendPart(b"x", {"UNIQ_KEY": "A1", "KEYS": "k"})
        delayed = SendPart(b"later", {"UNIQ_KEY": "A2", "DELAY": "2"})

        async def send(topic: str, queue_id: int, *parts: SendPart) -> dict[str, str]:
            answer = await link.send(topic, queue_id, parts)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return {name: value for name, value in answer.fields.items() if name != "TRACE_ON"}

        first = await send(TOPIC, 0, part)
        assert "duplicate" not in first
        assert await send(TOPIC, 1, part) == {**first, "duplicate": "true"}
        waiting = await send(TOPIC, 1, delayed)
        other = SendPart(b"y", {"UNIQ_KEY": "B1"})
        mixed = await send(TOPIC, 0, other, part, other)
        assert (mixed["duplicate"], mixed["queueOffsets"]) == ("false,true,true", "1,0,1")
        assert "duplicate" not in await send("Plain", 0, part)
        assert "duplicate" not in await send("Plain", 0, part)
        link.close()
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        link = await BrokerLink.connect(cluster.broker_addresses[0])
        assert await send(TOPIC, 1, part) == {**first, "duplicate": "true"}
        assert await send(TOPIC, 1, delayed) == {**waiting, "duplicate": "true"}
        assert await link.max_offset("Plain", 0) == 2
        link.close()
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while (await stored(cluster))[b"later"] == 0:
                await asyncio.sleep(0.2)
        assert await stored(cluster) == once([b"x", b"y", b"later"])


async def test_rolled_back_and_recalled_messages_may_be_sent_again(tmp_path: Path) -> None:
    """A duplicate of what is never delivered would be a loss, before a crash and after it."""
    half = SendPart(b"x", {"UNIQ_KEY": "A1", "TRAN_MSG": "true", "PGROUP": "p"})
    timed = SendPart(b"x", {"UNIQ_KEY": "A2", "TIMER_DELAY_SEC": "3600"})
    with Cluster(tmp_path, settings={"recallMessageEnable": "true"}) as cluster:
        link = await BrokerLink.connect(cluster.broker_addresses[0])
        await link.create_topic(TOPIC, 2, attributes="+dedup.seconds=3600")

        async def send(part: SendPart, *, is_new: bool) -> Command:
            answer = await link.send(TOPIC, 0, [part])
            answer.raise_for_code()
            assert answer.fields.get("duplicate") == (None if is_new else "true")
            return answer

        async def undo() -> None:
            """Send both, twice; then see to it that neither is ever delivered."""
            prepared, waiting = await send(half, is_new=True), await send(timed, is_new=True)
            await send(half, is_new=False)
            again = await send(timed, is_new=False)
            handle = waiting.fields["recallHandle"]
            assert again.fields["recallHandle"] == handle
            ended = await link.end_transaction("p", prepared, TRANSACTION_ROLLBACK)
            ended.raise_for_code()
            (await link.recall(TOPIC, handle)).raise_for_code()

        await undo()
        await undo()
        link.close()
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        link = await BrokerLink.connect(cluster.broker_addresses[0])
        await undo()
        link.close()


async def test_refusals_change_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        link = await BrokerLink.connect(cluster.broker_addresses[0])
        await link.create_topic(TOPIC, 1)

        async def send(sequence: str, **properties: str) -> int:
            part = SendPart(b"x", {"UNIQ_KEY": "U" + sequence.replace(":", "x"), **properties})
            return (await link.send(TOPIC, 0, [part], sequence=sequence)).code

        assert await send("1:5::p") == ResponseCode.SUCCESS
        assert await send("0:6::p") == ResponseCode.PRODUCER_FENCED
        assert await send("1:7:6:p") == ResponseCode.SEQUENCE_OUT_OF_ORDER
        for wrong in (
            "1:x::p",
            "1:5::",
            "-1:5::p",
            "5",
            "1:5::\u00e9",
            "1:99999999999999999999::p",
        ):
            assert await send(wrong) == ResponseCode.INVALID_PARAMETER
        assert await link.max_offset(TOPIC, 0) == 1
        # Who forwards a message with its properties is not its producer.
        (record,) = await link.read(TOPIC, 0, 0, 1)
        assert record.properties["__PRODUCER_SEQUENCE"] == "1:5:p"
        copy = await link.send(TOPIC, 0, [SendPart(b"copy", dict(record.properties))])
        assert copy.code == ResponseCode.SUCCESS
        (_, record) = await link.read(TOPIC, 0, 0, 2)
        assert "__PRODUCER_SEQUENCE" not in record.properties
        link.close()

    with pytest.raises(ConfigError):
        Producer("p", producer_id="x")
    with pytest.raises(ConfigError):
        BlockingProducer("p", idempotent=True, producer_id="white space")
    with pytest.raises(ConfigError):
        Producer("p", idempotent=True, epoch=1)


async def test_rows_are_numbered_only_where_numbers_have_an_effect(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        message = Message(TOPIC, b"x")
        async with Producer("p", name_servers=cluster.addresses) as plain:
            with pytest.raises(MessageRefused):
                await plain.send(message, sequence=1)
        async with Producer("p", name_servers=cluster.addresses, idempotent=True) as numbering:
            with pytest.raises(MessageRefused):
                await numbering.send(message, sequence=1)
            with pytest.raises(MessageRefused):
                await numbering.send_oneway(message)
            assert (numbering.producer_id or "").startswith("~")
        async with Producer(
            "p", name_servers=cluster.addresses, idempotent=True, producer_id="mine"
        ) as named:
            with pytest.raises(MessageRefused):
                await named.send(message)
            with pytest.raises(MessageRefused):
                await named.send_batch([message])


def test_threads_can_do_it_too(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        for is_duplicate in (False, True):
            with BlockingProducer(
                "p", name_servers=cluster.addresses, idempotent=True, producer_id="mine"
            ) as producer:
                assert producer.last_sequence(TOPIC) == (3 if is_duplicate else None)
                result = producer.send(Message(TOPIC, b"x"), sequence=3)
                assert result.duplicate is is_duplicate
                (other,) = producer.send_batch([Message(TOPIC, b"y")], first_sequence=1)
                assert other.duplicate is is_duplicate
        saved = cluster.broker_directory() / "store" / "config" / "producerState.json"
        cluster.brokers[0].stop()
        (state,) = json.loads(saved.read_text())["producers"]
        assert (state["producerId"], state["runs"]) == ("mine", [[1, 2], [3, 4]])
