from __future__ import annotations

import zlib

import pytest

from client.brokers import record
from rocketpost.client import Message, MessageQueue, MessageRefused, ReceivedMessage
from rocketpost.client.message import check_message
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import decode_record
from rocketpost.errors import RemoteProtocolError
from rocketpost.model import sysflag
from rocketpost.model.properties import RESERVED

QUEUE = MessageQueue("b", 0, "T")


def properties_of(message: Message) -> dict[str, str]:
    return decode_properties(message.property_text("ID").encode())


def received(**fields: object) -> ReceivedMessage:
    return ReceivedMessage(decode_record(record(**fields)), QUEUE, 10)  # type: ignore[arg-type]


def test_everything_a_message_carries_becomes_a_property() -> None:
    message = Message(
        "T", b"x", tags="A", keys=["k1", "k2"], properties={"color": "red"}, wait_store=False,
        sharding_key="s", delay_level=3,
    )  # fmt: skip
    assert properties_of(message) == {
        "UNIQ_KEY": "ID",
        "WAIT": "false",
        "color": "red",
        "DELAY": "3",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "s",
    }
    assert message.is_delayed
    assert message.properties == {"color": "red", "DELAY": "3"}


def test_timers_travel_as_milliseconds() -> None:
    assert properties_of(Message("T", b"x", delay_seconds=1.5))["TIMER_DELAY_MS"] == "1500"
    assert properties_of(Message("T", b"x", deliver_at_ms=99))["TIMER_DELIVER_MS"] == "99"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_of_the_system_are_refused(name: str) -> None:
    with pytest.raises(MessageRefused, match="used by the system"):
        Message("T", b"x", properties={name: "v"})


@pytest.mark.parametrize(
    "options",
    [
        {"properties": {"": "v"}},
        {"properties": {"n": " "}},
        {"properties": {"n": 5}},
        {"properties": {"n": "a\x02b"}},
        {"properties": {"a\x01b": "v"}},
        {"keys": ["two words"]},
        {"keys": [""]},
        {"tags": "a\x02"},
        {"delay_level": 19},
        {"delay_level": -1},
        {"delay_seconds": 0},
        {"delay_level": 1, "delay_seconds": 1},
        {"flag": 2**31},
        {"flag": 1.5},
    ],
)
def test_values_that_cannot_travel_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(MessageRefused):
        Message("T", b"x", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "body", "why"),
    [
        ("T", b"", "empty"),
        ("T", None, "not bytes"),
        ("T", "text", "not bytes"),
        ("T", b"12345", "at most 4"),
        ("", b"x", "blank"),
        ("a" * 128, b"x", "at most 127"),
        ("a.b", b"x", "characters"),
        ("SCHEDULE_TOPIC_XXXX", b"x", "forbidden"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", b"x", "forbidden"),
    ],
)
def test_bodies_and_topics_are_checked_before_sending(topic: str, body: bytes, why: str) -> None:
    with pytest.raises(MessageRefused, match=why):
        check_message(Message(topic, body), body_bytes_max=4)


def test_properties_that_are_too_long_are_refused() -> None:
    message = Message("T", b"x", properties={"n": "ü" * 17_000})
    with pytest.raises(MessageRefused, match="at most 32767"):
        message.property_text("ID")


def test_a_received_message_shows_what_was_stored() -> None:
    message = received(
        properties=b"TAGS\x01A\x02KEYS\x01k\t1 k2\x02UNIQ_KEY\x01U\x02", queue_offset=4, position=16
    )
    assert (message.topic, message.body, message.tags) == ("T", b"hello", "A")
    assert message.keys == ["k\t1", "k2"], "only blanks separate keys"
    assert message.message_id == "U"
    assert message.offset_id == "7F00000100002A9F0000000000000010"
    assert message.store_host == message.born_host == ("127.0.0.1", 10911)
    assert (message.queue_offset, message.position, message.backlog) == (4, 16, 5)


def test_without_a_unique_key_the_offset_id_is_the_message_id() -> None:
    message = received()
    assert message.message_id == message.offset_id


def test_a_retried_message_shows_the_topic_it_was_sent_to() -> None:
    message = received(topic="%RETRY%g", properties=b"RETRY_TOPIC\x01Orders\x02")
    assert message.topic == "Orders"
    assert received(topic="%RETRY%g").topic == "%RETRY%g"


def test_compressed_bodies_are_decompressed_when_looked_at() -> None:
    flag = sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB
    assert received(body=zlib.compress(b"big"), sys_flag=flag).body == b"big"
    with pytest.raises(RemoteProtocolError):
        _ = received(body=b"not zlib", sys_flag=flag).body


def test_a_priority_travels_and_excludes_a_sharding_key() -> None:
    message = Message("T", b"x", priority=7)
    assert message.priority == 7
    assert "_SYS_MSG_PRIORITY_\x017\x02" in message.property_text("U")
    assert Message("T", b"x").priority is None
    with pytest.raises(MessageRefused, match="-1"):
        Message("T", b"x", priority=-1)
    with pytest.raises(MessageRefused, match="sharding key or a priority"):
        Message("T", b"x", priority=1, sharding_key="k")
    with pytest.raises(MessageRefused, match="used by the system"):
        Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "1"})
