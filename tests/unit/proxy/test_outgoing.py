from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from rocketpost.proxy.outgoing import stored_body, stored_properties
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code, Encoding, MessageType
from rocketpost.proxy.wire.messages import Message, set_ms

NOW_MS = 1_700_000_000_000


def properties(message: Any, **config: Any) -> dict[str, str]:
    return stored_properties(
        message, "topic", peer="10.0.0.1:4000", now_ms=NOW_MS, config=ProxyConfig(**config)
    )


def test_properties_of_a_plain_message() -> None:
    message = Message(user_properties={"a": "b"})
    message.system_properties.message_id = "id"
    assert properties(message) == {
        "UNIQ_KEY": "id",
        "a": "b",
        "RECONSUME_TIME": "0",
        "__BORNHOST": "10.0.0.1:4000",
        "PGROUP": "topic",
    }


def test_properties_of_every_kind() -> None:
    message = Message()
    system = message.system_properties
    system.message_type = MessageType.TRANSACTION
    system.orphaned_transaction_recovery_duration.seconds = 30
    system.message_group, system.tag, system.trace_context = "group", "tag", "trace"
    system.keys.extend(["one", "two"])
    system.priority = 3
    set_ms(system.born_timestamp, 5)
    found = properties(message)
    assert found["TRAN_MSG"] == "true"
    assert found["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    assert found["__SHARDINGKEY"] == "group"
    assert (found["TAGS"], found["KEYS"]) == ("tag", "one two")
    assert (found["TRACE_CONTEXT"], found["BORN_TIMESTAMP"]) == ("trace", "5")
    assert found["_SYS_MSG_PRIORITY_"] == "3"


def test_the_time_of_a_transaction_may_be_a_property() -> None:
    """Official clients do not set the field."""
    message = Message(user_properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"})
    message.system_properties.message_type = MessageType.TRANSACTION
    assert properties(message)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "40"
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 30
    assert properties(message)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    message.system_properties.ClearField("orphaned_transaction_recovery_duration")
    for text in ("3601", "-1", "x", "", "9" * 5000):
        message.user_properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = text
        with pytest.raises(Refusal) as refused:
            properties(message)
        assert refused.value.code == Code.BAD_REQUEST


def test_delivery_times() -> None:
    message = Message()
    set_ms(message.system_properties.delivery_timestamp, NOW_MS + 9_000)
    assert properties(message)["TIMER_DELIVER_MS"] == str(NOW_MS + 9_000)
    assert properties(message, uses_delay_levels=True)["DELAY"] == "3"
    levels = {"uses_delay_levels": True, "delay_levels": "9s 10s"}
    assert properties(message, **levels)["DELAY"] == "1"
    for due_ms in (NOW_MS + 86_400_001, -1):
        set_ms(message.system_properties.delivery_timestamp, due_ms)
        with pytest.raises(Refusal) as refused:
            properties(message)
        assert refused.value.code == Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_stored_plain(compress: Any) -> None:
    message = Message(body=compress(b"body" * 10))
    message.system_properties.body_encoding = Encoding.GZIP
    assert stored_body(message, ProxyConfig()) == b"body" * 10
    with pytest.raises(Refusal) as refused:
        stored_body(message, ProxyConfig(body_bytes_max=20))
    assert refused.value.code == Code.MESSAGE_BODY_TOO_LARGE
    message.body = compress(b"")
    assert stored_body(message, ProxyConfig(refuses_empty_bodies=False)) == b""
    message.body = compress(b"body")
    for broken in (b"nonsense", message.body[:-6]):
        message.body = broken
        with pytest.raises(Refusal) as refused:
            stored_body(message, ProxyConfig())
        assert refused.value.code == Code.MESSAGE_CORRUPTED
