"""Frames of sends, the lane that takes them, and the ordinary way that must agree with it."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from rocketpost.broker.plain_topics import SPECIAL_NAMES, pack_names
from rocketpost.broker.send import SendService
from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.command import Command, decode_commands, encode_response
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.headers.message import SendMessage, SendMessageV2
from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.codec.send_replies import binary_pieces, json_pieces
from rocketpost.kernel.hashing import extend_state, index_hash
from rocketpost.model.sysflag import MULTI_TAGS
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Draft

V4 = pack_host("192.0.2.7", 4711)
V6 = pack_host("2001:db8::7", 4711)
STORE_V4 = pack_host("192.0.2.1", 10911)
STORE_V6 = pack_host("2001:db8::1", 10911)
REGION = "DefaultRegion"
NOW_MS = 1_794_783_523_095
QUEUES = 4
BODY_MAX = 4096
OTHER = 3
LETTERS = dict(
    zip(
        [
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
            "maxReconsumeTimes",
            "batch",
            "bname",
        ],
        "abcdefghijklmn",
        strict=True,
    )
)


def fields_of(properties: str, **more: Any) -> dict[str, Any]:
    """Return the header fields of a send, by their long names."""
    values: dict[str, Any] = {
        "producerGroup": "producers",
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": str(NOW_MS - 5),
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    values |= more
    return {name: value for name, value in values.items() if value is not None}


def frame(header: bytes, body: bytes = b"body", encoding: int = 0) -> bytes:
    """Return a frame."""
    return (
        struct.pack(">iI", 4 + len(header) + len(body), encoding << 24 | len(header))
        + header
        + body
    )


def json_header(fields: dict[str, Any], *, code: int = 310, **more: Any) -> bytes:
    """Return a JSON header as Java's clients write it."""
    if code != 10:
        fields = {LETTERS.get(name, name): value for name, value in fields.items()}
    header = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    } | more
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def binary_header(
    fields: dict[str, Any], *, code: int = 310, opaque: int = 7, flag: int = 0
) -> bytes:
    """Return a binary header."""
    pairs = b""
    for name, value in fields.items():
        short = name.encode() if code == 10 else LETTERS.get(name, name).encode()
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        pairs += struct.pack(">h", len(short)) + short + struct.pack(">i", len(text)) + text
    return struct.pack(">hBhiiii", code, 0, 479, opaque, flag, 0, len(pairs)) + pairs


def batch_body(*items: tuple[bytes, str]) -> bytes:
    """Return the body of a batch of messages, each a body and properties."""
    return encode_batch(BatchItem(3, body, text.encode()) for body, text in items)


@dataclass
class Topics:
    """The topic table."""

    table: dict[str, TopicConfig] = field(default_factory=dict)

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def create_on_send(self, topic: str, **_: Any) -> TopicConfig | None:
        return None

    def create_internal(self, topic: str, **_: Any) -> TopicConfig:
        raise AssertionError(topic)


class Groups:
    """No groups."""

    def find_or_create(self, group: str, *, by: str = "") -> None:
        return None

    def use(self, group: str) -> None:
        raise AssertionError(group)


def make_topics() -> Topics:
    """Return the topics: a plain one, one with MULTI_TAG, one with a long name."""
    configs = [
        TopicConfig(topic_name="Orders", read_queue_nums=QUEUES, write_queue_nums=QUEUES),
        TopicConfig(
            topic_name="Tagged",
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            topic_filter_type="MULTI_TAG",
        ),
        TopicConfig(topic_name="x" * 127, read_queue_nums=1, write_queue_nums=1),
    ]
    return Topics({config.topic_name: config for config in configs})


class Ordinary:
    """The ordinary way: ``codec``, ``broker.send`` and a record for each message."""

    def __init__(self, *, store_host: bytes = STORE_V4, position: int = 0) -> None:
        self.topics = make_topics()
        self.store_host = store_host
        self.position = position
        self.offsets: dict[tuple[str, int], int] = {}
        self.service = SendService(
            topics=self.topics,
            groups=Groups(),
            clock=None,  # type: ignore[arg-type]
            store_host=store_host,
            cluster_name="DefaultCluster",
            region=REGION,
            new_unique_id=lambda: "GENERATED",
            random_below=lambda n: n - 1,
            holds_locks=lambda group: False,
        )
        self.service.configure(message_bytes_max=BODY_MAX, trace_on=True, accept_from_ms=0)
        self.records: list[bytes] = []
        self.rows: list[tuple[int, ...]] = []
        self.keys: list[int] = []
        self.replies: list[bytes] = []

    def serve(self, data: bytes, born_host: bytes) -> None:
        """Serve whole frames, none of which is refused."""
        for command in decode_commands(FrameDecoder().feed(data)):
            self._serve(command, born_host)

    def _serve(self, command: Command, born_host: bytes) -> None:
        header: Any
        assert command.code in (10, 310, 320)
        header = command.read(SendMessage if command.code == 10 else SendMessageV2)
        assert header.sequence is None
        if header.batch:
            drafts = self.service.draft_batch(header, command.body, born_host=born_host)
        else:
            drafts = [
                self.service.draft(
                    header, command.body, born_host=born_host, client_version=command.version
                )
            ]
        positions = [self._store(draft) for draft in drafts]
        first = drafts[0]
        if not command.is_oneway:
            fields = {
                "msgId": ",".join(f"{self.store_host.hex().upper()}{at:016X}" for at in positions),
                "queueId": str(first.queue_id),
                "queueOffset": str(self.rows[-len(drafts)][4]),
                "transactionId": first.keys[0],
                "MSG_REGION": REGION,
                "TRACE_ON": "true",
            }
            self.replies.append(encode_response(command, fields=fields))

    def _store(self, draft: Draft) -> int:
        queue = (draft.topic, draft.queue_id)
        offset = self.offsets.get(queue, 0)
        self.offsets[queue] = offset + 1
        record = Record(
            size=0,
            magic=0,
            body_crc=0,
            queue_id=draft.queue_id,
            flag=draft.flag,
            queue_offset=offset,
            position=self.position,
            sys_flag=draft.sys_flag,
            born_ms=draft.born_ms,
            born_host_bytes=draft.born_host,
            store_ms=NOW_MS,
            store_host_bytes=draft.store_host,
            reconsume_times=draft.reconsume_times,
            prepared_position=draft.prepared_position,
            body=draft.body,
            topic=draft.topic,
            properties_bytes=draft.properties,
        )
        packed = b"".join(encode_record(record))
        slot = list(self.topics.table).index(draft.topic) * QUEUES + draft.queue_id
        self.records.append(packed)
        self.rows.append((self.position, len(packed), draft.tags_code, slot, offset))
        for key in draft.keys:
            self.keys += (index_hash(f"{draft.topic}#{key}"), self.position)
        position = self.position
        self.position += len(packed)
        return position


class World:
    """A lane of one build, with its buffers.

    Args:
        kernel: The module ``send_lane``.
    """

    def __init__(
        self,
        kernel: ModuleType,
        *,
        store_host: bytes = STORE_V4,
        position: int = 0,
        room_end: int = 2**40,
        record_bytes: int = 256 * 1024,
        row_count: int = 1024,
        key_count: int = 2048,
    ) -> None:
        self.store_host = store_host
        self.position = self.start = position
        self.room_end = room_end
        self.records = bytearray(record_bytes)
        self.rows = array("q", bytes(40 * row_count))
        self.keys = array("q", bytes(16 * key_count))
        self.topics = make_topics()
        self.offsets = array("q", bytes(8 * QUEUES * len(self.topics.table)))
        self.lane = kernel.Lane(self.records, self.rows, self.keys)
        table = self.lane.topics
        table.clear(self.offsets)
        self.configure()
        for at, (name, config) in enumerate(self.topics.table.items()):
            flags = MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0
            number = table.add(
                name.encode(), config.write_queue_nums, flags, extend_state(0, f"{name}#"), True
            )
            for queue_id in range(config.write_queue_nums):
                table.set_slot(number, queue_id, at * QUEUES + queue_id)
        self.record_at = self.row_at = self.key_at = 0
        self.replies = b""
        self.counts: list[tuple[int, int]] = []
        """Code and number of the frames of each call."""
        self.answers = 0
        self.signer: Any = None
        """The user who must have signed the sends."""

    def configure(self, special: Iterable[str] = SPECIAL_NAMES) -> None:
        """Set what all messages share; ``special`` names properties that are not plain."""
        self.lane.configure(
            special=pack_names(special),
            added=b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02",
            body_max=BODY_MAX,
            properties_max=32767,
            store_host=self.store_host,
            prefix=self.store_host.hex().upper().encode(),
            json_pieces=json_pieces(REGION, trace_on=True),
            binary_pieces=binary_pieces(REGION, trace_on=True),
        )

    def take(self, data: bytes, at: int = 0, born_host: bytes = V4) -> int:
        """Take frames; returns the index of the first that was not taken."""
        lane = self.lane
        writer = lane.writer
        writer.begin(self.position, self.room_end, NOW_MS, self.record_at, self.row_at, self.key_at)
        self.replies += lane.take(data, at, len(data), born_host, self.signer)
        self.position = writer.position
        self.record_at, self.row_at, self.key_at = writer.record_at, writer.row_at, writer.key_at
        self.answers += lane.answers
        if lane.frames:
            self.counts.append((lane.code, lane.frames))
        after: int = lane.at
        return self.take(data, after, born_host) if lane.verdict == OTHER else after

    @property
    def taken_rows(self) -> list[tuple[int, ...]]:
        return [tuple(self.rows[5 * row : 5 * row + 5]) for row in range(self.row_at)]

    def check(self, data: bytes, born_host: bytes = V4) -> int:
        """Take frames, compare with the ordinary way, and return how many bytes were taken."""
        after = self.take(data, born_host=born_host)
        ordinary = Ordinary(store_host=self.store_host, position=self.start)
        ordinary.serve(data[:after], born_host)
        assert bytes(self.records[: self.record_at]) == b"".join(ordinary.records)
        assert self.taken_rows == ordinary.rows
        assert list(self.keys[: 2 * self.key_at]) == ordinary.keys
        assert self.replies == b"".join(ordinary.replies)
        names = list(self.topics.table)
        expected = [0] * len(self.offsets)
        for (topic, queue_id), offset in ordinary.offsets.items():
            expected[names.index(topic) * QUEUES + queue_id] = offset
        assert list(self.offsets) == expected
        assert self.answers == len(ordinary.replies)
        assert not any(self.records[self.record_at + 70_000 :])
        return after
