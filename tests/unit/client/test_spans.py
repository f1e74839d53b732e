from __future__ import annotations

import subprocess
import sys

import pytest

from rocketpost.client import Message, Producer, ProducerConfig, PushConsumer, PushConsumerConfig
from rocketpost.client.consumer.simple_consumer import SimpleConsumer
from rocketpost.client.message import MessageQueue, ReceivedMessage
from rocketpost.client.spans import NO_SPAN
from rocketpost.codec.record import Record
from rocketpost.errors import ConfigError, MessageRefused

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.slow
def test_opentelemetry_is_imported_for_spans_only() -> None:
    code = "import sys, rocketpost.client; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"rocketpost\[spans\]"):
        Producer("G", config=ProducerConfig(enable_spans=True))
    with pytest.raises(ConfigError, match=r"rocketpost\[spans\]"):
        PushConsumer("G", config=PushConsumerConfig(enable_spans=True))
    with pytest.raises(ConfigError, match=r"rocketpost\[spans\]"):
        SimpleConsumer("G", enable_spans=True)


def test_without_spans_a_message_stays_as_it_is() -> None:
    message = Message("T", b"x")
    with NO_SPAN as span:
        assert span.carry(message) is message


def test_a_copy_carries_the_context() -> None:
    message = Message("T", b"x", tags="a", properties={"b": "c"})
    carrying = message.with_context({"traceparent": PARENT})
    assert carrying.properties == {"b": "c", "traceparent": PARENT}
    assert (carrying.topic, carrying.body, carrying.tags) == ("T", b"x", "a")
    assert message.properties == {"b": "c"}
    with pytest.raises(MessageRefused, match="U\\+0002"):
        message.with_context({"baggage": "a\x02"})


def received(properties: dict[str, str]) -> ReceivedMessage:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    record = Record(
        size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=0, position=0, sys_flag=0,
        born_ms=0, born_host_bytes=b"", store_ms=0, store_host_bytes=b"", reconsume_times=0,
        prepared_position=0, body=b"x", topic="T", properties_bytes=text.encode(),
    )  # fmt: skip
    return ReceivedMessage(record, MessageQueue("b", 0, "T"))


def test_the_context_of_a_received_message() -> None:
    assert received({"x": "y"}).trace_context == {}
    w3c = {"traceparent": PARENT, "tracestate": "a=b", "baggage": "c=d"}
    assert received({"x": "y", **w3c}).trace_context == w3c
    assert received({"TRACE_CONTEXT": PARENT}).trace_context == {"traceparent": PARENT}
