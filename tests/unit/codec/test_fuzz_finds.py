"""Finds of the fuzzer, each as a test of its own, and all saved inputs."""

from __future__ import annotations

import shutil
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import RouteCache, publish_queues, subscribe_queues
from rocketpost.codec.bodies.client import decode_heartbeat
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.frames import Frame, FrameDecoder
from rocketpost.codec.headers.message import SendMessage
from rocketpost.codec.lenient_json import decode_any, standardize
from rocketpost.codec.record import Record, decode_record, encode_record, pack_host
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.kernel.record_scan import MORE, scan_records
from rocketpost.model.route import MessageQueue, QueueData, TopicRoute
from rocketpost.server.settings.live_config import decode_overrides
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.layout import parse_deleted_topic, parse_file_name, parse_queue_id
from rocketpost.store.message_store import MessageStore

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "fuzz" / "corpus"
DEEP = 20_000
HOST = pack_host("10.0.0.1", 10911)


@pytest.fixture(scope="module")
def fuzz_package() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("*") if path.is_dir()))
@pytest.mark.usefixtures("fuzz_package")
def test_every_saved_input_is_harmless(name: str) -> None:
    from fuzz.targets import load

    target = load(name)
    try:
        for path in sorted((CORPUS / name).iterdir()):
            target.check(path.read_bytes())
    finally:
        target.close()


def record(body: bytes, *, topic: str = "T") -> Record:
    return Record(
        size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=0, position=0, sys_flag=0,
        born_ms=1, born_host_bytes=HOST, store_ms=2, store_host_bytes=HOST, reconsume_times=0,
        prepared_position=0, body=body, topic=topic, properties_bytes=b"",
    )  # fmt: skip


def draft(topic: str) -> Draft:
    return Draft(topic, 0, 0, 0, 1, HOST, HOST, 0, 0, b"body", b"")


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def open_store(root: Path) -> MessageStore:
    config = StoreConfig(
        root=str(root), segment_bytes=16384, queue_file_bytes=2000, message_bytes_max=8192,
        index_slot_count=64, index_entry_count=256,
    )  # fmt: skip
    return MessageStore.open_blocking(config, clock=Clock(), on_durable=lambda position: None)


def header(fields: bytes) -> Command:
    return decode_command(Frame(0, b'{"code":10,"extFields":' + fields + b"}", b""))


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":1,"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"code":1,"extFields":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'{"code":1,"language":' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
)
def test_a_header_nested_deeply_is_the_peers_mistake(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_command(Frame(0, data, b""))


@pytest.mark.parametrize("depth", [100, 480, 600, DEEP])
def test_a_body_nested_deeply_is_the_peers_mistake(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(b'{"clientID":"c","consumerDataSet":[' + nested + b"]}")
    with pytest.raises(RemoteProtocolError):
        decode_any(nested[:depth])


def test_keys_within_keys_do_not_explode() -> None:
    # Each level doubled the backslashes: 25 levels made 130 MB of 160 bytes.
    text = b'{"a":1}'
    for _ in range(60):
        text = b"{" + text + b":1}"
    assert len(standardize(text)) < 2 * len(text)
    with pytest.raises(RemoteProtocolError):
        decode_any(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"{", b",", b"1:2,", b"{}:1,", b'"', b'\\"', b'{"', b", ", b",{", b"[{},"]
)
def test_hostile_json_costs_little(piece: bytes) -> None:
    text = b"{" + piece * (4 * 1024 * 1024 // len(piece))
    start = time.process_time()
    with pytest.raises(RemoteProtocolError):
        decode_any(text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "field",
    [b'"flag":"2147483648"', b'"bornTimestamp":"9223372036854775808"', b'"sysFlag":"-2147483649"',
     b'"reconsumeTimes":"99999999999"', b'"queueId":"1e99"'],
)  # fmt: skip
def test_numbers_wider_than_the_record_are_refused_when_decoded(field: bytes) -> None:
    command = header(b'{"producerGroup":"P","topic":"T",' + field + b"}")
    with pytest.raises(InvalidParameter):
        command.read(SendMessage)


def test_an_empty_body_needs_no_crc() -> None:
    # Recovery takes such a record, as RocketMQ does; so must readers, or it blocks its queue.
    data = bytearray(b"".join(encode_record(record(b""))))
    data[8:12] = b"\x00\xff\xff\xff"
    assert scan_records(bytes(data), 0, 0, count_max=1)[2] == MORE
    assert decode_record(bytes(data)).body == b""


def test_a_message_without_a_topic_can_be_looked_at() -> None:
    message = ReceivedMessage(record(b"x", topic=""), MessageQueue("b", 0, "T"))
    assert message.topic == ""


@pytest.mark.parametrize(
    "route",
    [
        TopicRoute(queue_datas=[QueueData(broker_name="b", read_queue_nums=2**31 - 1)]),
        TopicRoute(order_topic_conf=";".join(["b:999999"] * 9)),
        TopicRoute(queue_datas=[QueueData(broker_name="b", write_queue_nums=2**62)]),
    ],
)
def test_a_route_cannot_fill_the_memory(route: TopicRoute) -> None:
    with pytest.raises(RemoteProtocolError, match="queues; at most"):
        publish_queues("T", route) + subscribe_queues("T", route)


def test_numbers_in_other_scripts_are_no_queue_counts() -> None:
    assert publish_queues("T", TopicRoute(order_topic_conf="b:²;c:" + "9" * 5000)) == []


async def test_a_broker_without_addresses_is_nobody() -> None:
    async def ask(code: int, fields: dict[str, str]) -> Command:
        body = b'{"brokerDatas":[{"brokerAddrs":{},"brokerName":"b"}],"queueDatas":[]}'
        return Command(body=body)

    routes = RouteCache(ask)
    await routes.fetch("T")
    assert routes.some_broker("T") is None


@pytest.mark.parametrize("name", ["0000000000000000000٣", "²", "٣", "-1", "+1", "01"])
def test_other_digits_name_no_file(name: str) -> None:
    assert parse_file_name(name) is None
    assert parse_queue_id(name) is None
    assert parse_deleted_topic(f"{name}-1-T") is None or name.isdecimal()


@pytest.mark.slow
@pytest.mark.parametrize("evil", [b"../../", b"/tmp/x", b"a/b/cd"])
def test_topics_in_a_damaged_log_make_no_files_elsewhere(tmp_path: Path, evil: bytes) -> None:
    root = tmp_path / "a" / "store"
    store = open_store(root)
    store.append(draft("TopicA"))
    store.append(draft("TopicB"))
    store.close_blocking()
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "consumequeue")
    segment = root / "commitlog" / "00000000000000000000"
    segment.write_bytes(segment.read_bytes().replace(b"TopicA", evil))
    store = open_store(root)
    try:
        store.save_blocking()
        assert [(queue.topic, queue.end) for queue in store.queues] == [("TopicB", 1)]
    finally:
        store.close_blocking()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in root.parent.iterdir()] == ["store"]
    assert not list(root.glob("consumequeue/a"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lock", "abort", "checkpoint", "config/droppedTopics.json"])
def test_a_directory_in_the_place_of_a_file_is_a_store_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "store" / name).mkdir(parents=True)
    with pytest.raises(StoreError):
        open_store(tmp_path / "store")


def test_tables_nested_deeply_are_damaged() -> None:
    nested = b'{"offsetTable":' + b"[" * DEEP + b"]" * DEEP + b"}"
    with pytest.raises(RemoteProtocolError):
        decode_offset_table(nested)
    with pytest.raises(StoreError):
        decode_overrides(nested)


@pytest.mark.slow
def test_a_frame_that_trickles_in_costs_what_it_weighs() -> None:
    size = 256 * 1024
    decoder = FrameDecoder()
    decoder.feed((size).to_bytes(4, "big") + b"\0\0\0\0")
    tracemalloc.start()
    for _ in range(size // 2 - 8):
        decoder.feed(bytes((1, 2)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoder.held == size - 8
    assert held < 2 * size
    assert len(decoder.feed(bytes(12))[0].body) == size - 4
