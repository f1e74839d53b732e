"""Records to read, and what each column must say of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.spark.records.fields import Ints

V4 = pack_host("10.1.2.3", 10911)
V6 = pack_host("2001:db8::7", 10911)
_TIME_MAX_MS = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_names = st.text(
    st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1
)
regular = st.dictionaries(
    _names | st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS"]), _names, max_size=6
)
properties = regular.map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
)
odd_properties = st.one_of(
    properties,
    st.sampled_from(
        [
            b"a\x01b",
            b"a\x02b\x01c\x02",
            b"\x01v\x02a\x01b\x02",
            b"a\x01\x02",
            b"TAGS\x01A\x02TAGS\x01B\x02",
        ]
    ),
    st.binary(max_size=40),
)


@st.composite
def records(draw: st.DrawFn, texts: st.SearchStrategy[bytes] = properties) -> Record:
    return record(
        queue_id=draw(st.integers(0, 9)),
        queue_offset=draw(st.integers(0, 2**40)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        born_ms=draw(st.integers(0, 2**42)),
        store_ms=draw(st.integers(0, 2**42)),
        born_host_bytes=draw(st.sampled_from([V4, V6])),
        store_host_bytes=draw(st.sampled_from([V4, V6])),
        reconsume_times=draw(st.integers(0, 16)),
        prepared_position=draw(st.integers(0, 2**40)),
        body=draw(st.binary(max_size=60)),
        topic=draw(st.sampled_from(["T", "Orders", "t" * 127, "%RETRY%" + "g" * 150])),
        properties_bytes=draw(texts),
    )


def record(**more: Any) -> Record:
    values: dict[str, Any] = {
        "size": 0,
        "magic": 0,
        "body_crc": 0,
        "queue_id": 0,
        "flag": 0,
        "queue_offset": 0,
        "position": 0,
        "sys_flag": 0,
        "born_ms": 1_700_000_000_000,
        "born_host_bytes": V4,
        "store_ms": 1_700_000_000_001,
        "store_host_bytes": V4,
        "reconsume_times": 0,
        "prepared_position": 0,
        "body": b"body",
        "topic": "T",
        "properties_bytes": b"UNIQ_KEY\x01U\x02",
    }
    return Record(**values | more)


def packed(record: Record) -> bytes:
    return b"".join(encode_record(record))


def laid_out(some: list[Record]) -> tuple[bytes, Ints]:
    """Return records one behind the other, and where each begins."""
    parts = [packed(each) for each in some]
    ends = np.cumsum([0, *map(len, parts)])
    return b"".join(parts), ends[:-1].astype(np.int64)


def row(record: Record, broker: str | None) -> dict[str, Any]:
    """Return what a batch must say of a record, by the plain way of decoding."""
    pairs = record.properties
    return {
        "topic": record.topic,
        "brokerName": broker,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.position,
        "msgId": record.message_id,
        "uniqKey": pairs.get("UNIQ_KEY"),
        "keys": pairs.get("KEYS"),
        "tags": pairs.get("TAGS"),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCrc": record.body_crc,
        "bornTimestamp": _time(record.born_ms),
        "bornHost": _host(record.born_host),
        "storeTimestamp": _time(record.store_ms),
        "storeHost": _host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_position,
        "storeSize": record.size,
        "body": bytes(record.body),
        "properties": pairs,
    }


def _time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(ms, _TIME_MAX_MS))


def _host(host: tuple[str, int]) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
