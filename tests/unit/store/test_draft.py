"""Copies of stored messages."""

from __future__ import annotations

import pytest

from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import sysflag
from rocketpost.store.draft import Draft

BORN = pack_host("10.0.0.1", 5001)
OLD = pack_host("10.0.0.2", 10911)
HERE = pack_host("10.0.0.3", 10911)
PROPERTIES = encode_properties({"TAGS": "a", "UNIQ_KEY": "U", "KEYS": "k1  k2"})


def record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "size": 200,
        "magic": 0,
        "body_crc": 0,
        "queue_id": 3,
        "flag": 7,
        "queue_offset": 11,
        "position": 4096,
        "sys_flag": sysflag.COMPRESSED | sysflag.TRANSACTION_COMMIT,
        "born_ms": 1_000,
        "born_host_bytes": BORN,
        "store_ms": 2_000,
        "store_host_bytes": OLD,
        "reconsume_times": 2,
        "prepared_position": 99,
        "body": memoryview(b"body"),
        "topic": "old",
        "properties_bytes": PROPERTIES,
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


def test_a_copy_keeps_the_message_and_changes_its_place() -> None:
    copy = Draft.copy_of(record(), topic="new", queue_id=1, store_host=HERE)
    assert copy == Draft(
        topic="new",
        queue_id=1,
        flag=7,
        sys_flag=sysflag.COMPRESSED | sysflag.TRANSACTION_COMMIT,
        born_ms=1_000,
        born_host=BORN,
        store_host=HERE,
        reconsume_times=2,
        prepared_position=0,
        body=b"body",
        properties=PROPERTIES,
        tags_code=string_hash("a"),
        keys=("U", "k1", "k2"),
    )
    assert type(copy.body) is bytes  # a view would keep the segment mapped


def test_a_copy_takes_changes() -> None:
    copy = Draft.copy_of(
        record(),
        topic="new",
        queue_id=1,
        store_host=HERE,
        sys_flag=sysflag.COMPRESSED,
        reconsume_times=0,
        prepared_position=4096,
        properties=encode_properties({"TAGS": "b"}),
    )
    assert (copy.sys_flag, copy.reconsume_times, copy.prepared_position) == (1, 0, 4096)
    assert (copy.tags_code, copy.keys) == (string_hash("b"), ())


@pytest.mark.parametrize("born", ["10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("here", ["10.0.0.3", "fe80::3"])
def test_the_address_bits_of_a_copy_follow_its_addresses(born: str, here: str) -> None:
    given = record(born_host_bytes=pack_host(born, 1), sys_flag=sysflag.STORE_HOST_V6)
    copy = Draft.copy_of(given, topic="new", queue_id=1, store_host=pack_host(here, 2))
    assert bool(copy.sys_flag & sysflag.BORN_HOST_V6) == (":" in born)
    assert bool(copy.sys_flag & sysflag.STORE_HOST_V6) == (":" in here)
