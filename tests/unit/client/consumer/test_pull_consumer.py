from __future__ import annotations

from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, broker, network_of, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    MessageQueue,
    PullConsumer,
    PullStatus,
)
from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import NoPermission
from rocketpost.errors import RemoteProtocolError
from rocketpost.model import sysflag

A = "a:1"
ONE = {"T": route_of({"a": A})}
QUEUE = MessageQueue("a", 0, "T")
PULL = RequestCode.PULL_MESSAGE

Use = Callable[[FakeNetwork], FakeNetwork]


def pulled(code: int = 0, body: bytes = b"", next_offset: int = 9) -> Callable[[Command], Answer]:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "1",
        "maxOffset": "20",
    }
    return lambda command: Answer(code, fields, body)


def consumer() -> PullConsumer:
    return PullConsumer("G", name_servers=NAMESRV)


async def test_messages_are_decoded_and_filtered_by_tag_once_more(use_network: Use) -> None:
    body = record(properties=b"TAGS\x01A\x02", queue_offset=5) + record(
        properties=b"TAGS\x01B\x02", queue_offset=6
    ) + record(queue_offset=7)  # fmt: skip
    network = use_network(network_of(ONE, {A: broker(PULL_MESSAGE=pulled(0, body))}))
    async with consumer() as reader:
        everything = await reader.pull(QUEUE, 5)
        some = await reader.pull(QUEUE, 5, tags="A || C", count_max=3)
    assert everything.status is PullStatus.FOUND
    assert [message.queue_offset for message in everything.messages] == [5, 6, 7]
    assert (everything.next_offset, everything.min_offset, everything.max_offset) == (9, 1, 20)
    assert [message.queue_offset for message in some.messages] == [5]
    fields = network.sent(PULL)[1].fields
    assert fields["subscription"] == "A || C"
    assert (fields["maxMsgNums"], fields["sysFlag"], fields["commitOffset"]) == ("3", "4", "0")


@pytest.mark.parametrize("status", [s for s in PullStatus if s is not PullStatus.FOUND])
async def test_every_status_is_returned(use_network: Use, status: PullStatus) -> None:
    use_network(network_of(ONE, {A: broker(PULL_MESSAGE=pulled(int(status.value)))}))
    async with consumer() as reader:
        result = await reader.pull(QUEUE, 5)
    assert (result.status, result.messages, result.next_offset) == (status, [], 9)


async def test_holding_asks_the_broker_to_wait(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(PULL_MESSAGE=pulled(19))}))
    async with consumer() as reader:
        await reader.pull(QUEUE, 5, hold=True, hold_seconds=1.5)
    fields = network.sent(PULL)[0].fields
    assert (fields["sysFlag"], fields["suspendTimeoutMillis"]) == ("6", "1500")


async def test_a_message_that_cannot_be_read_is_not_skipped_in_silence(use_network: Use) -> None:
    good, bad = record(queue_offset=5), b"\x00" * 50
    answers = [good + bad, bad]
    use_network(network_of(ONE, {A: broker(PULL_MESSAGE=lambda c: pulled(0, answers.pop(0))(c))}))
    async with consumer() as reader:
        result = await reader.pull(QUEUE, 5)
        assert (len(result.messages), result.next_offset) == (1, 6)
        with pytest.raises(RemoteProtocolError, match="offset 6"):
            await reader.pull(QUEUE, 6)


async def test_a_batch_stored_as_one_record_is_unwrapped(use_network: Use) -> None:
    items = [BatchItem(n, b"%d" % n, b"TAGS\x01%c\x02" % (65 + n)) for n in range(3)]
    flag = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    body = record(queue_offset=5, body=encode_batch(items), sys_flag=flag) + record(queue_offset=8)
    use_network(network_of(ONE, {A: broker(PULL_MESSAGE=pulled(0, body))}))
    async with consumer() as reader:
        result = await reader.pull(QUEUE, 5)
        tagged = await reader.pull(QUEUE, 5, tags="B")
        rest = await reader.pull(QUEUE, 7)
    assert [(m.queue_offset, m.body) for m in result.messages] == [
        (5, b"0"), (6, b"1"), (7, b"2"), (8, b"hello")
    ]  # fmt: skip
    assert [(m.flag, m.tags, m.record.sys_flag) for m in tagged.messages] == [(1, "B", 0)]
    assert [message.queue_offset for message in rest.messages] == [7, 8]


async def test_refusals_and_senseless_arguments_raise(use_network: Use) -> None:
    refuse = broker(PULL_MESSAGE=lambda command: Answer(ResponseCode.NO_PERMISSION))
    use_network(network_of(ONE, {A: refuse}))
    async with consumer() as reader:
        with pytest.raises(NoPermission):
            await reader.pull(QUEUE, 0)
        with pytest.raises(ConfigError):
            await reader.pull(QUEUE, -1)
        with pytest.raises(ConfigError):
            await reader.pull(QUEUE, 0, count_max=0)


async def test_offsets_are_asked_and_committed(use_network: Use) -> None:
    offset = {"offset": "3"}
    known = iter([Answer(ResponseCode.QUERY_NOT_FOUND), Answer(fields={"offset": "4"})])
    network = use_network(
        network_of(ONE, {A: broker(
            GET_MIN_OFFSET=lambda command: Answer(fields=offset),
            GET_MAX_OFFSET=lambda command: Answer(fields=offset),
            SEARCH_OFFSET_BY_TIMESTAMP=lambda command: Answer(fields=offset),
            QUERY_CONSUMER_OFFSET=lambda command: next(known),
        )})
    )  # fmt: skip
    async with consumer() as reader:
        [first, _] = await reader.queues("T")
        assert first == QUEUE
        assert await reader.min_offset(QUEUE) == 3
        assert await reader.max_offset(QUEUE) == 3
        assert await reader.search_offset(QUEUE, 1000) == 3
        assert await reader.fetch_offset(QUEUE) is None
        await reader.commit_offset(QUEUE, 4)
    [commit] = network.sent(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert commit.fields == {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "4"
    }  # fmt: skip
    assert network.sent(RequestCode.HEART_BEAT) == []  # the group is not announced
