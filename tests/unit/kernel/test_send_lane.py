from __future__ import annotations

import importlib.util
import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.errors import RocketpostError

from .lane_world import (
    BODY_MAX,
    QUEUES,
    STORE_V4,
    STORE_V6,
    V4,
    V6,
    World,
    batch_body,
    binary_header,
    fields_of,
    frame,
    json_header,
)

GOLDEN = Path(__file__).parents[2] / "golden/__init__.py"
KEY = "UNIQ_KEY\x01C0A8010A00002A9F4E0E2F2A4D074915\x02"
MORE, ODD, FULL = 0, 1, 2


def send(properties: str = KEY, body: bytes = b"body", **more: Any) -> bytes:
    """Return a frame with a JSON header."""
    return frame(json_header(fields_of(properties, **more)), body)


def binary(properties: Any = KEY, body: bytes = b"body", **more: Any) -> bytes:
    """Return a frame with a binary header."""
    return frame(binary_header(fields_of(properties, **more)), body, 1)


def batch(*items: tuple[bytes, str], shared: str = "", code: int = 320) -> bytes:
    return frame(json_header(fields_of(shared, batch="true"), code=code), batch_body(*items))


PLAIN = {
    "java": send(f"KEYS\x01k1 k2\x02{KEY}WAIT\x01true\x02TAGS\x01TagA\x02"),
    "binary": binary(f"KEYS\x01k1 k2\x02{KEY}WAIT\x01true\x02TAGS\x01TagA\x02"),
    "oneway": frame(json_header(fields_of(KEY), flag=2)),
    "binary oneway": frame(binary_header(fields_of(KEY), flag=2), b"b", 1),
    "no separator at the end": send(KEY + "a\x01b"),
    "binary without separator at the end": binary(KEY + "a\x01b"),
    "long names": frame(json_header(fields_of(KEY), code=10)),
    "long names with the broker": frame(json_header(fields_of(KEY, bname="b"), code=10)),
    "binary long names": frame(binary_header(fields_of(KEY), code=10), b"b", 1),
    "few fields": frame(
        json_header({"producerGroup": "p", "topic": "Orders", "queueId": "0", "properties": KEY})
    ),
    "all fields": send(KEY, maxReconsumeTimes="16", bname="broker-a", unitMode="true"),
    "empty texts": send(KEY, producerGroup="", defaultTopic="", bname=""),
    "empty binary texts": binary(KEY, defaultTopic="", bname="", maxReconsumeTimes=""),
    "numbers without quotes": send(KEY, queueId=2, sysFlag=0, flag=-5, batch=False, unitMode=True),
    "negative numbers": send(KEY, flag="-2147483647", bornTimestamp="-1", reconsumeTimes="-3"),
    "flags": send(KEY, sysFlag=str(0x1 | 0xC | 0x30 | 0x300)),
    "negative flags": send(KEY, sysFlag="-1"),
    "spaces": frame(json.dumps(json.loads(json_header(fields_of(KEY)))).encode()),
    "line end": frame(json_header(fields_of(KEY)) + b"\n"),
    "remark": frame(json_header(fields_of(KEY), remark="")),
    "null remark": frame(json_header(fields_of(KEY), remark=None)),
    "ascii escapes": frame(
        json.dumps(
            json.loads(json_header(fields_of(KEY + 'a\x01\u4e2d"\\/\n\t\u00e9\x02')))
        ).encode()
    ),
    "chinese": send(f"{KEY}TAGS\x01订单\x02KEYS\x01订单一 key 😀\x02城市\x01北京\x02"),
    "chinese binary": binary(f"{KEY}TAGS\x01订单\x02KEYS\x01订单一 key 😀\x02城市\x01北京\x02"),
    "emoji tag": binary(f"{KEY}TAGS\x01😀é\x02"),
    "control characters": binary(KEY + "a\x01\x03\x1f\x7f\x02"),
    "keys with spaces": send(KEY + "KEYS\x01  a  b \x02"),
    "32 properties": send(KEY + "".join(f"p{i}\x01v\x02" for i in range(31))),
    "sharding key": send(KEY + "__SHARDINGKEY\x01s\x02"),
    "name like a special one": send(KEY + "DELAYS\x01 1\x02XDELAY\x011\x02TRAN_MSGS\x01true\x02"),
    "multi tag": send(KEY, topic="Tagged"),
    "longest topic": send(KEY, topic="x" * 127, queueId="0"),
    "one byte": send(KEY, b"\0"),
    "largest body": send(KEY, bytes(range(256)) * (BODY_MAX // 256)),
    "batch": batch((b"a", KEY), (b"bb", KEY + "TAGS\x01t\x02KEYS\x01k\x02"), (b"ccc", KEY[:-1])),
    "batch in chinese": batch((b"a", KEY + "KEYS\x01中 文\x02"), shared="WAIT\x01true\x02"),
    "batch with a key": batch((b"a", KEY), shared=KEY),
    "batch by the other code": batch((b"a", KEY), code=310),
    "binary batch": frame(
        binary_header(fields_of("", batch="true"), code=320), batch_body((b"a", KEY)), 1
    ),
}

ODD_FRAMES = {
    "pull": frame(json_header(fields_of(KEY), code=11)),
    "binary pull": frame(binary_header(fields_of(KEY), code=11), b"b", 1),
    "response": frame(json_header(fields_of(KEY), flag=1)),
    "other flag": frame(json_header(fields_of(KEY), flag=4)),
    "encoding": frame(json_header(fields_of(KEY)), encoding=2),
    "unknown topic": send(KEY, topic="Others"),
    "part of a topic": send(KEY, topic="Order"),
    "retry topic": send(KEY, topic="%RETRY%g"),
    "no topic": send(KEY, topic=None),
    "no group": send(KEY, producerGroup=None),
    "no queue": send(KEY, queueId="-1"),
    "queue not given": send(KEY, queueId=None),
    "queue over the last": send(KEY, queueId=str(QUEUES)),
    "no properties": send(""),
    "no unique key": send("TAGS\x01a\x02"),
    "empty unique key": send("UNIQ_KEY\x01\x02"),
    "unique key twice": send(KEY + KEY),
    "unique key to escape": send('UNIQ_KEY\x01a"b\x02'),
    "unique key in chinese": send("UNIQ_KEY\x01中\x02"),
    "a name twice": send(KEY + "a\x011\x02a\x012\x02"),
    "tags twice": send(KEY + "TAGS\x01a\x02TAGS\x01b\x02"),
    "no value": send(KEY + "a\x01\x02"),
    "no name": send(KEY + "\x01a\x02"),
    "no separator": send(KEY + "abc\x02"),
    "empty pair": send(KEY + "\x02a\x01b\x02"),
    "two separators": send(KEY + "a\x01b\x01c\x02"),
    "nul": binary(KEY + "a\x01b\0\x02"),
    "not utf-8": binary((KEY + "a\x01").encode() + b"\xff\x02"),
    "surrogate": binary((KEY + "a\x01").encode() + b"\xed\xa0\x80\x02"),
    "overlong": binary((KEY + "a\x01").encode() + b"\xc0\xaf\x02"),
    "cut utf-8": binary((KEY + "a\x01").encode() + b"\xe4\xb8\x02"),
    "escaped surrogate": frame(
        json.dumps(json.loads(json_header(fields_of(KEY + "a\x01😀\x02")))).encode()
    ),
    "not waiting": send(KEY + "WAIT\x01false\x02"),
    "33 properties": send(KEY + "".join(f"p{i}\x01v\x02" for i in range(32))),
    "too many properties": send(KEY + "a\x01" + "v" * 32_700 + "\x02"),
    "no body": send(KEY, b""),
    "body too long": send(KEY, bytes(BODY_MAX + 1)),
    "sequence": send(KEY, sequence="p:1:2"),
    "unknown field": send(KEY, traceparent="x"),
    "letters for long names": frame(json_header({"a": "p", "b": "Orders", "i": KEY}, code=10)),
    "long names for letters": frame(
        json_header(fields_of(KEY), code=10).replace(b'"code":10', b'"code":310')
    ),
    "leading zero": send(KEY, queueId="01"),
    "plus sign": send(KEY, queueId="+1"),
    "minus zero": send(KEY, queueId="-0"),
    "fraction": send(KEY, queueId="1.0"),
    "too large a number": send(KEY, sysFlag="2147483648"),
    "nineteen digits": send(KEY, bornTimestamp="1" * 19),
    "truth value": send(KEY, unitMode="TRUE"),
    "null field": frame(json_header(fields_of(KEY) | {"maxReconsumeTimes": None})),
    "number as text": send(KEY, producerGroup=5),
    "field twice": frame(json_header(fields_of(KEY)).replace(b'"e":"1"', b'"e":"1","e":"2"')),
    "member twice": frame(
        json_header(fields_of(KEY)).replace(b'"code":310', b'"code":310,"code":310')
    ),
    "unknown member": frame(json_header(fields_of(KEY), extra=1)),
    "number as language": frame(json_header(fields_of(KEY), language=0)),
    "control character in json": frame(json_header(fields_of(KEY)).replace(b"JAVA", b"JA\tVA")),
    "no comma": frame(json_header(fields_of(KEY)).replace(b'","b"', b'""b"')),
    "comma at the end": frame(json_header(fields_of(KEY))[:-1] + b",}"),
    "binary remark": frame(
        (lambda header: header[:13] + struct.pack(">i", 1) + b"r" + header[17:])(
            binary_header(fields_of(KEY))
        ),
        b"b",
        1,
    ),
    "bytes after binary fields": frame(binary_header(fields_of(KEY)) + b"\0", b"b", 1),
    "binary field twice": frame(
        binary_header(fields_of(KEY) | {"topic": "Orders", "b": "Tagged"}), b"b", 1
    ),
    "batch that shares": batch((b"a", KEY), shared=KEY + "TAGS\x01t\x02"),
    "batch that does not wait": batch((b"a", KEY), shared="WAIT\x01false\x02"),
    "empty batch": frame(json_header(fields_of("", batch="true"), code=320), b""),
    "empty message in a batch": batch((b"a", KEY), (b"", KEY)),
    "delayed message in a batch": batch((b"a", KEY), (b"b", KEY + "DELAY\x011\x02")),
    "no unique key in a batch": batch((b"a", KEY), (b"b", "TAGS\x01t\x02")),
    "cut batch": frame(
        json_header(fields_of("", batch="true"), code=320),
        batch_body((b"a", KEY), (b"b", KEY))[:-1],
    ),
    "batch with wrong sizes": frame(
        json_header(fields_of("", batch="true"), code=320),
        b"\0\0\0\1" + batch_body((b"a", KEY))[4:],
    ),
} | {
    f"property {name}": send(f"{KEY}{name}\x01{value}\x02")
    for name, value in [
        ("DELAY", "3"),
        ("TRAN_MSG", "true"),
        ("TIMER_DELAY_SEC", "1"),
        ("TIMER_DELAY_MS", "1"),
        ("TIMER_DELIVER_MS", "1"),
        ("_SYS_MSG_PRIORITY_", "1"),
        ("MSG_REGION", "r"),
        ("TRACE_ON", "true"),
        ("CLUSTER", "c"),
        ("POP_CK", "1"),
        ("__PRODUCER_SEQUENCE", "1"),
        ("__CRC32#", "1234567890"),
    ]
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_frame_is_taken_and_stored_as_the_ordinary_way_does(
    kernel: ModuleType, name: str
) -> None:
    data = PLAIN[name]
    world = World(kernel, position=2**33 + 5)
    assert world.check(data) == len(data)
    assert world.lane.verdict == MORE
    assert world.lane.frames == 1
    assert world.lane.is_offered(data, 0, len(data))


@pytest.mark.parametrize("of", [json_header, binary_header])
def test_the_frames_of_one_call_have_one_code(kernel: ModuleType, of: Any) -> None:
    def made(code: int, encoding: int) -> bytes:
        return frame(of(fields_of(KEY), code=code), b"body", encoding)

    encoding = int(of is binary_header)
    world = World(kernel)
    data = b"".join(made(code, encoding) for code in (310, 310, 10, 310, 310, 310, 10))
    assert world.check(data) == len(data)
    assert world.counts == [(310, 2), (10, 1), (310, 3), (10, 1)]


@pytest.mark.parametrize("name", ODD_FRAMES)
def test_an_odd_frame_is_left_alone(kernel: ModuleType, name: str) -> None:
    world = World(kernel)
    assert world.take(ODD_FRAMES[name]) == 0
    assert world.lane.verdict == ODD
    assert not world.replies
    assert not any(world.offsets)
    assert (world.record_at, world.row_at, world.key_at) == (0, 0, 0)


@pytest.mark.parametrize("store_host", [STORE_V4, STORE_V6])
@pytest.mark.parametrize("born_host", [V4, V6])
def test_all_plain_frames_in_one_call(
    kernel: ModuleType, born_host: bytes, store_host: bytes
) -> None:
    data = b"".join(PLAIN.values())
    world = World(kernel, store_host=store_host)
    assert world.check(data, born_host=born_host) == len(data)


def test_the_lane_stops_at_an_odd_frame_and_goes_on_after_it(kernel: ModuleType) -> None:
    odd = ODD_FRAMES["pull"]
    data = PLAIN["java"] * 3 + odd + PLAIN["binary"] + PLAIN["batch"]
    world = World(kernel)
    at = world.take(data)
    assert (at, world.lane.verdict, world.lane.frames) == (3 * len(PLAIN["java"]), ODD, 3)
    assert not world.lane.is_offered(data, at, len(data))
    assert world.take(data, at + len(odd)) == len(data)
    assert [row[4] for row in world.taken_rows] == list(range(7))
    assert world.answers == 5


def golden_exchanges(peer: str, name: str) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    yield from module.exchanges(peer, name)


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_frames_captured_from_java(kernel: ModuleType, encoding: str) -> None:
    wire = "rocketmq" if encoding == "binary" else "json"
    taken: list[str] = []
    for exchange in golden_exchanges(f"client-*-{wire}", "3[12]0-*"):
        world = World(kernel)
        data = exchange.request.wire
        command = next(decode_commands(FrameDecoder().feed(data)))
        number = world.lane.topics.add(command.fields["b"].encode(), QUEUES, 0, 0, True)
        for queue_id in range(QUEUES):
            world.lane.topics.set_slot(number, queue_id, queue_id)
        if world.take(data) == len(data):
            taken.append(f"{exchange.peer}/{exchange.name}")
        else:
            assert "delayed" in exchange.name or "-sys4-" in exchange.name, exchange.name
    assert len(taken) >= 8


def test_an_incomplete_frame_is_left_for_later(kernel: ModuleType) -> None:
    for data in (PLAIN["java"], PLAIN["binary"], PLAIN["batch"]):
        for size in range(len(data)):
            world = World(kernel)
            assert world.take(data[:size]) == 0
            assert world.lane.verdict == MORE
            assert not world.replies


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, 2**24, 2**31 - 1])
def test_a_length_that_no_frame_has_is_odd(kernel: ModuleType, length: int) -> None:
    world = World(kernel)
    assert world.take(struct.pack(">i", length) + PLAIN["java"][4:]) == 0
    assert world.lane.verdict == ODD


def test_a_record_must_end_before_the_segment_does(kernel: ModuleType) -> None:
    data = PLAIN["java"]
    world = World(kernel)
    world.take(data)
    size = world.record_at
    for room, verdict in [(size - 1, FULL), (size, MORE)]:
        world = World(kernel, position=1000, room_end=1000 + room)
        world.take(data)
        assert world.lane.verdict == verdict
        assert any(world.offsets) == (verdict == MORE)
    for record_bytes, verdict in [(size - 1, FULL), (size, MORE)]:
        world = World(kernel, record_bytes=record_bytes)
        world.take(data)
        assert world.lane.verdict == verdict


def test_rows_and_keys_have_bounds(kernel: ModuleType) -> None:
    data = PLAIN["java"] * 5  # three keys each
    world = World(kernel, row_count=3)
    assert (world.take(data), world.lane.verdict) == (3 * len(PLAIN["java"]), FULL)
    world = World(kernel, key_count=8)
    assert (world.take(data), world.lane.verdict) == (2 * len(PLAIN["java"]), FULL)
    assert list(world.offsets[:2]) == [0, 2]
    assert world.key_at == 6


def test_a_batch_is_taken_as_a_whole_or_not_at_all(kernel: ModuleType) -> None:
    data = PLAIN["batch"]
    for more in ({"row_count": 3}, {"key_count": 5}, {"record_bytes": 750}, {"room_end": 750}):
        world = World(kernel, **more)  # type: ignore[arg-type]
        at = world.take(PLAIN["java"] + data)
        assert (at, world.lane.verdict) == (len(PLAIN["java"]), FULL)
        assert (world.row_at, world.key_at) == (1, 3)
        assert list(world.offsets[:2]) == [0, 1]


def test_replies_have_a_bound(kernel: ModuleType) -> None:
    long_key = f"UNIQ_KEY\x01{'k' * 30_000}\x02"
    data = binary(long_key, topic="Orders") * 80
    world = World(kernel, record_bytes=8 * 1024 * 1024)
    after = world.take(data)
    assert world.lane.verdict == FULL
    assert 0 < after < len(data)
    assert world.row_at == world.lane.answers == world.offsets[1] == 69
    assert len(world.replies) <= kernel.REPLY_BYTES


def test_the_largest_batch_is_answered(kernel: ModuleType) -> None:
    if not kernel.IS_COMPILED:
        pytest.skip("takes too long uncompiled")
    items = [(b"x", "UNIQ_KEY\x01k\x02")] * 16_384
    size = {"record_bytes": 8 * 1024 * 1024, "row_count": 20_000, "key_count": 20_000}
    for count, verdict in [(16_384, MORE), (16_385, ODD)]:
        world = World(kernel, **size)
        world.lane.configure(**configuration(world, body_max=4 * 1024 * 1024))
        world.take(batch(*(items + items)[:count]))
        assert world.lane.verdict == verdict
        assert world.row_at == (count if verdict == MORE else 0)


def configuration(world: World, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "special": b"",
        "added": b"",
        "body_max": BODY_MAX,
        "properties_max": 32767,
        "store_host": STORE_V4,
        "prefix": b"P",
        "json_pieces": [b"{", b"", b"", b"", b"", b"}"],
        "binary_pieces": [bytes(32), b"", b"", b"", b""],
    }
    return values | more


def test_a_topic_whose_type_forbids_sharding_keys(kernel: ModuleType) -> None:
    world = World(kernel)
    number = world.lane.topics.add(b"Normal", 1, 0, 0, False)
    world.lane.topics.set_slot(number, 0, 0)
    plain = send(KEY, topic="Normal", queueId="0")
    sharded = send(KEY + "__SHARDINGKEY\x01s\x02", topic="Normal", queueId="0")
    assert world.take(plain + sharded) == len(plain)


def test_a_queue_without_a_slot_is_left_alone(kernel: ModuleType) -> None:
    world = World(kernel)
    number = world.lane.topics.add(b"New", 2, 0, 0, True)
    first, second = (send(KEY, topic="New", queueId=str(i)) for i in range(2))
    assert world.take(first) == 0
    world.lane.topics.set_slot(number, 1, 3)
    assert world.take(first) == 0
    assert world.take(second) == len(second)
    assert world.taken_rows[0][3] == 3


def test_thousands_of_topics(kernel: ModuleType) -> None:
    world = World(kernel)
    table = world.lane.topics
    table.clear(world.offsets)
    count = 3000
    for at in range(count):
        assert table.add(f"topic-{at}-{'x' * (at % 90)}".encode(), at % 9 + 1, 0, 0, True) == at
    for at in range(count):
        table.set_slot(at, at % 9, at % len(world.offsets))
    for at in random.Random(1).sample(range(count), 200):
        name = f"topic-{at}-{'x' * (at % 90)}"
        data = send(KEY, topic=name, queueId=str(at % 9))
        assert world.take(data) == len(data)
        assert world.taken_rows[-1][3] == at % len(world.offsets)
        assert world.take(send(KEY, topic=name + "y", queueId="0")) == 0
    table.clear(world.offsets)
    assert world.take(send(KEY, topic="topic-0-", queueId="0")) == 0


texts = st.text(
    st.one_of(
        st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), st.sampled_from("中é😀 ")
    ),
    min_size=1,
    max_size=12,
)


@given(
    pairs=st.dictionaries(texts, texts, max_size=6),
    body=st.binary(min_size=1, max_size=300),
    is_binary=st.booleans(),
    keys=st.text("ab 中", max_size=9),
    flag=st.integers(-(2**31) + 1, 2**31 - 1),
    born_ms=st.integers(-(10**18) + 1, 10**18 - 1),
    opaque=st.integers(-(2**31) + 1, 2**31 - 1),
)
def test_any_properties_are_stored_as_the_ordinary_way_does(
    kernel: ModuleType,
    pairs: dict[str, str],
    body: bytes,
    is_binary: bool,
    keys: str,
    flag: int,
    born_ms: int,
    opaque: int,
) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()) + KEY
    if keys:
        text += f"KEYS\x01{keys}\x02"
    fields = fields_of(text, flag=str(flag), bornTimestamp=str(born_ms))
    if is_binary:
        data = frame(binary_header(fields, opaque=opaque), body, 1)
    else:
        data = frame(json_header(fields, opaque=opaque), body)
    assert World(kernel).check(data) in (len(data), 0)


@given(data=st.data())
def test_mutated_frames_are_taken_only_if_the_ordinary_way_stores_the_same(
    kernel: ModuleType, data: st.DataObject
) -> None:
    frames = [PLAIN[data.draw(st.sampled_from(sorted(PLAIN)))] for _ in range(2)]
    stream = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream) - 1))
        change = data.draw(st.sampled_from(["set", "delete", "insert", "swap"]))
        byte = data.draw(
            st.one_of(
                st.integers(0, 255), st.sampled_from(list(b'\x00\x01\x02"\\{},: 0919truefalse'))
            )
        )
        if change == "set":
            stream[at] = byte
        elif change == "delete" and len(stream) > 1:
            del stream[at]
        elif change == "insert":
            stream.insert(at, byte)
        else:
            stream[at] ^= 1 << byte % 8
    try:
        World(kernel).check(bytes(stream))
    except RocketpostError as error:
        raise AssertionError(f"the ordinary way refuses what the lane took: {error}") from error
