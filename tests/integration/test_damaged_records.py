"""Bits flipped beneath a running broker: the damaged messages are named, all others arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.damage import DamageList
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.pop import PopMessage
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_records
from rocketpost.server.broker import BrokerServer
from rocketpost.store.integrity import read_check
from rocketpost.transport.connection import Connection

pytestmark = pytest.mark.slow

COUNT = 24
BAD = 9
HEAD = 88
BODY = b"body of message %03d"
TOPIC = "T"
QUEUE = {"topic": TOPIC, "queueId": "0"}
# Byte of the record, and what it belongs to.
FIELDS = {
    "size, low": 3, "size, high": 0, "magic": 6, "body crc": 9, "queue id": 15,
    "queue offset": 27, "queue offset, high": 20, "position": 34, "body length": 87,
    "body": HEAD + 4, "topic length": HEAD + len(BODY % 1), "topic": HEAD + len(BODY % 1) + 1,
    "properties length": HEAD + len(BODY % 1) + 3,
}  # fmt: skip


class Broker:
    """A broker in this process, asked in raw commands over a socket."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def start(self) -> None:
        self.server = BrokerServer(
            {
                "storePathRootDir": str(self.root),
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "mappedFileSizeCommitLog": str(256 * 1024),
                "mappedFileSizeConsumeQueue": "4000",
                "maxMessageSize": "16384",
                "maxHashSlotNum": "1000",
                "maxIndexNum": "4000",
                "messageDelayLevel": "1s 2s",
                "checkCRCOnReadInterval": "0",
            }
        )
        await self.server.start()
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: Connection(on_request=lambda *_: None), "127.0.0.1", self.server.port
        )

    async def stop(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()
        await self.server.stop()

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        return await self.connection.request(code, fields=fields, body=body, timeout=10)

    async def send(self, number: int, **properties: str) -> Record:
        """Send a message; returns its record as it lies in the log."""
        properties = {"UNIQ_KEY": f"U{number}", "KEYS": f"K{number}", **properties}
        answer = await self.ask(
            Code.SEND_MESSAGE,
            BODY % number,
            producerGroup="P",
            defaultTopic="TBW102",
            defaultTopicQueueNums="1",
            sysFlag="0",
            bornTimestamp="1",
            flag="0",
            properties=encode_properties(properties).decode(),
            **QUEUE,
        )
        assert answer.code == 0, answer.remark
        position = int(answer.fields["msgId"][-16:], 16)
        answer = await self.ask(Code.VIEW_MESSAGE_BY_ID, offset=str(position))
        return decode_records(answer.body)[0]

    async def pull(self, offset: int = 0, group: str = "G") -> tuple[list[Record], int]:
        """Pull to the end, as a consumer does; returns what arrived and where it stopped."""
        found: list[Record] = []
        for _ in range(2 * COUNT):
            answer = await self.ask(
                Code.PULL_MESSAGE,
                consumerGroup=group,
                queueOffset=str(offset),
                maxMsgNums="7",
                sysFlag="4",
                commitOffset="0",
                suspendTimeoutMillis="0",
                subscription="*",
                subVersion="0",
                **QUEUE,
            )
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found, offset
            assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
            found += decode_records(answer.body)
            offset = int(answer.fields["nextBeginOffset"])
        raise AssertionError("the end is never reached")

    async def pop(self) -> list[Record]:
        found: list[Record] = []
        for _ in range(2 * COUNT):
            header = PopMessage(
                consumer_group="G2", topic=TOPIC, queue_id=0, max_msg_nums=7, invisible_time=60_000,
                poll_time=0, born_time=1, exp_type="TAG", exp="*",
            )  # fmt: skip
            answer = await self.ask(Code.POP_MESSAGE, **to_fields(header))
            if not answer.body:
                return found
            found += decode_records(answer.body)
        raise AssertionError("the end is never reached")

    async def damage(self) -> DamageList:
        return decode_body((await self.ask(Code.GET_DAMAGE, topic=TOPIC)).body, DamageList)

    def flip(self, position: int, at: int) -> None:
        start = position - position % (256 * 1024)
        _flip(self.root / "commitlog" / f"{start:020d}", position - start + at)

    def flip_entry(self, offset: int, at: int) -> None:
        _flip(self.root / "consumequeue" / TOPIC / "0" / f"{0:020d}", 20 * offset + at)


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path / "store")
    await broker.start()
    yield broker
    await broker.stop()


def bodies(records: list[Record]) -> list[bytes]:
    return [bytes(record.body) for record in records]


SOUND = [BODY % number for number in range(COUNT) if number != BAD]


@pytest.mark.parametrize("field", FIELDS)
async def test_all_but_the_damaged_message_is_delivered_in_order(
    broker: Broker, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    records = [await broker.send(number) for number in range(COUNT)]
    broker.flip(records[BAD].position, FIELDS[field])
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found, end = await broker.pull()
            assert bodies(found) == SOUND
            assert [record.queue_offset for record in found] == [
                number for number in range(COUNT) if number != BAD
            ]
            assert end == COUNT
        assert bodies(await broker.pop()) == SOUND
        assert bodies((await broker.pull(BAD, "Other"))[0]) == SOUND[BAD:]
    assert caplog.text.count("commit log is damaged") == 1
    assert f"topic={TOPIC} queue=0 offset={BAD} " in caplog.text
    (lost,) = (await broker.damage()).ranges
    assert (lost.topic, lost.queue_id, lost.queue_offset) == (TOPIC, 0, BAD)
    assert (lost.begin, lost.end) == (
        records[BAD].position, records[BAD].position + records[BAD].size
    )  # fmt: skip
    values = decode_key_values((await broker.ask(Code.GET_BROKER_RUNTIME_INFO)).body)
    assert values["damagedRanges"] == "1"
    assert f"{TOPIC} queue 0 offset {BAD}" in values["damagedRangeNewest"]


async def test_without_the_check_the_damaged_message_is_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests here would notice a broker that checks nothing."""
    monkeypatch.setattr(read_check, "find_unsound", lambda *_: [])
    records = [await broker.send(number) for number in range(COUNT)]
    broker.flip(records[BAD].position, FIELDS["body"])
    found, _ = await broker.pull()
    # A client that checks the CRC stops there, and the rest of the answer is hidden.
    assert len(found) < len(SOUND)
    broker.flip(records[BAD].position, FIELDS["body"])
    assert len((await broker.pull())[0]) == COUNT


async def test_several_damaged_messages_are_each_named(broker: Broker) -> None:
    records = [await broker.send(number) for number in range(COUNT)]
    for number, at in ((0, 3), (8, HEAD), (9, 0), (10, 6), (COUNT - 1, HEAD + 2)):
        broker.flip(records[number].position, at)
    found, end = await broker.pull()
    lost = {0, 8, 9, 10, COUNT - 1}
    assert bodies(found) == [BODY % number for number in range(COUNT) if number not in lost]
    assert end == COUNT
    assert {each.queue_offset for each in (await broker.damage()).ranges} == lost


@pytest.mark.parametrize("at", [3, 6, HEAD + 4])
async def test_queries_do_not_return_a_damaged_message(broker: Broker, at: int) -> None:
    record = await broker.send(1)
    sound = await broker.send(2)
    broker.flip(record.position, at)
    answer = await broker.ask(Code.VIEW_MESSAGE_BY_ID, offset=str(record.position))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is damaged" in (answer.remark or "")
    by_key = {"topic": TOPIC, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    answer = await broker.ask(Code.QUERY_MESSAGE, key="K1", **by_key)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    answer = await broker.ask(Code.QUERY_MESSAGE, key="K2", **by_key)
    assert bodies(decode_records(answer.body)) == [BODY % 2]
    answer = await broker.ask(Code.VIEW_MESSAGE_BY_ID, offset=str(sound.position))
    assert bodies(decode_records(answer.body)) == [BODY % 2]


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({"DELAY": "1"}, "SCHEDULE_TOPIC_XXXX"),
        ({"TIMER_DELAY_SEC": "2"}, "rmq_sys_wheel_timer"),
    ],
)
@pytest.mark.parametrize("at", [3, HEAD + 4])
async def test_a_damaged_delayed_message_is_not_delivered_and_others_are(
    broker: Broker, properties: dict[str, str], topic: str, at: int
) -> None:
    records = [await broker.send(number, **properties) for number in range(5)]
    broker.flip(records[2].position, at)
    expected = [BODY % number for number in (0, 1, 3, 4)]
    async with asyncio.timeout(15):
        while bodies((await broker.pull())[0]) != expected:
            await asyncio.sleep(0.1)
    (lost,) = decode_body((await broker.ask(Code.GET_DAMAGE)).body, DamageList).ranges
    assert (lost.topic, lost.queue_offset) == (topic, 2)


async def test_a_damaged_message_cannot_be_sent_back(broker: Broker) -> None:
    records = [await broker.send(number) for number in range(3)]
    broker.flip(records[1].position, HEAD + 4)
    fields = {"group": "G", "delayLevel": "1", "originTopic": TOPIC, "maxReconsumeTimes": "3"}
    answer = await broker.ask(
        Code.CONSUMER_SEND_MSG_BACK, offset=str(records[1].position), **fields
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await broker.ask(
        Code.CONSUMER_SEND_MSG_BACK, offset=str(records[2].position), **fields
    )
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("at", [1, 5, 7, 9, 11])
async def test_a_damaged_queue_entry_is_mended(broker: Broker, at: int) -> None:
    for number in range(COUNT):
        await broker.send(number)
    await broker.stop()
    await broker.start()  # entries are read from the file now
    broker.flip_entry(BAD, at)
    found, end = await broker.pull()
    assert bodies(found) == [BODY % number for number in range(COUNT)]
    assert end == COUNT
    values = decode_key_values((await broker.ask(Code.GET_BROKER_RUNTIME_INFO)).body)
    assert (values["damagedRanges"], values["queueEntriesMended"]) == ("0", "1")
    assert bodies(await broker.pop()) == [BODY % number for number in range(COUNT)]


def test_the_list_of_damage_reads_back() -> None:
    assert msgspec.json.decode(b'{"ranges":[],"total":0}', type=DamageList) == DamageList()
