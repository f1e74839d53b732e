"""The key-value table: values, bounds, and the text that goes to disk."""

from __future__ import annotations

import pytest

from rocketpost.codec.faults import InvalidParameter, SystemBusy
from rocketpost.errors import RemoteProtocolError
from rocketpost.namesrv import kv_config
from rocketpost.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig


def test_a_change_leaves_the_old_table_alone() -> None:
    empty = KvConfig()
    one = empty.put(ORDER_TOPIC_CONFIG, "TopicA", "broker-a:4")
    two = one.put(ORDER_TOPIC_CONFIG, "TopicA", "broker-a:8").put("other", "k", "v")
    assert empty.namespace(ORDER_TOPIC_CONFIG) is None
    assert one.get(ORDER_TOPIC_CONFIG, "TopicA") == "broker-a:4"
    assert two.get(ORDER_TOPIC_CONFIG, "TopicA") == "broker-a:8"
    assert two.namespace("other") == {"k": "v"}


def test_deleting() -> None:
    table = KvConfig().put("n", "k", "v")
    assert table.delete("n", "k").namespace("n") == {}
    assert table.delete("n", "x") is table
    assert table.delete("x", "k") is table
    assert table.get("n", "k") == "v"


def test_the_text_on_disk() -> None:
    table = KvConfig().put(ORDER_TOPIC_CONFIG, "TopicA", "broker-a:4")
    text = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"}}}'
    assert table.to_text() == text
    assert KvConfig.from_text(text).get(ORDER_TOPIC_CONFIG, "TopicA") == "broker-a:4"
    with pytest.raises(RemoteProtocolError):
        KvConfig.from_text(text[:-3])


@pytest.mark.parametrize("name", ["", " ", "x" * 256, "a\nb", "a\x00"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidParameter, match="namespace"):
        KvConfig().put(name, "k", "v")
    with pytest.raises(InvalidParameter, match="key"):
        KvConfig().put("n", name, "v")


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameter, match="65536 characters"):
        KvConfig().put("n", "k", "v" * 65_536)
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 2)
    full = KvConfig().put("n", "a", "1").put("m", "b", "2")
    with pytest.raises(SystemBusy, match="2 entries"):
        full.put("n", "c", "3")
    assert full.put("n", "a", "other").get("n", "a") == "other"
    monkeypatch.setattr(kv_config, "TEXT_BYTES_MAX", 64)
    with pytest.raises(SystemBusy, match="64 bytes"):
        full.put("n", "a", "x" * 64)
