"""The broker's side of consuming over a real store, without a server, and a crash at any point."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DelayService, DueBatch
from rocketpost.broker.group.retry import RetryService
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pull.reader import PullLimits, QueueReader
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_record, decode_records, pack_host
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.group import GroupConfig
from rocketpost.model.ids import Position
from rocketpost.model.topic import TopicConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock

BORN: Final = pack_host("10.0.0.9", 4000)
HOST: Final = pack_host("10.0.0.1", 10911)
TOPIC, GROUP, OTHER = "T", "g", "h"
RETRY, DEAD = "%RETRY%g", "%DLQ%g"
QUEUES: Final = 2
RETRY_QUEUES: Final = 2
DELAYS_MS: Final = (1000, 2000, 3000, 5000)
LOCK_MS: Final = 4000
VERSION: Final = 479


class Place(NamedTuple):
    """A queue."""

    topic: str
    queue_id: int


class Copy(NamedTuple):
    """A message in a queue: which, and how often it was sent back."""

    name: str
    times: int


class PullResult(NamedTuple):
    """The messages that a consumer got from a pull."""

    next_offset: int
    records: list[Record]


class World:
    """A store and everything about consuming on it."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.topics.add_builtin()
        self.topics.update(
            TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        )
        self.groups = GroupTable(clock=self.clock)
        for group in (GROUP, OTHER):
            self.groups.update(
                GroupConfig(group_name=group, retry_queue_nums=RETRY_QUEUES, retry_max_times=2)
            )
        self.sent = 0
        self.turn = 0
        config = StoreConfig(
            root=str(root),
            segment_bytes=256 * 1024,
            queue_file_bytes=2000,
            message_bytes_max=8192,
            index_slot_count=64,
            index_entry_count=65536,
            delay_levels=" ".join(f"{ms // 1000}s" for ms in DELAYS_MS),
        )
        self.store = MessageStore.open_blocking(
            config, clock=self.clock, on_durable=lambda position: None
        )
        self.saved_delays = b""
        self.start()

    def start(self) -> None:
        """Begin as after a start of the process, with the tables as last saved."""
        self.progress = DelayProgress(clock=self.clock)
        self.progress.durable = lambda: self.store.confirmed_position
        if self.saved_delays:
            self.progress.load(self.saved_delays)
        self.delays = DelayService(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            clock=self.clock,
            progress=self.progress,
            delays_ms=DELAYS_MS,
            store_host=HOST,
        )
        for level in range(1, len(DELAYS_MS) + 1):
            while self.delays.skip_delivered(level):
                pass
        self.retries = RetryService(
            topics=self.topics,
            groups=self.groups,
            record_at=self.store.record_at,
            store_host=HOST,
            random_below=lambda count: self.turn % count,
            level_max=len(DELAYS_MS),
            put_off=lambda draft, ms: draft,  # no group here has a policy
        )
        self.pulls = QueueReader(
            records=self.store,
            access=self.store.integrity.reader,
            limits=PullLimits(memory_bytes=2**30),
        )

    def save(self) -> None:
        self.saved_delays = self.progress.to_json()

    def crash(self) -> None:
        self.store.confirm(self.store.commit())
        self.start()

    def close(self) -> None:
        self.store.close_blocking()

    def send(self, queue_id: int, tag: str) -> str:
        self.sent += 1
        name = f"m{self.sent}"
        properties = encode_properties({"UNIQ_KEY": name, "TAGS": tag})
        code = string_hash(tag)
        draft = Draft(
            TOPIC, queue_id, 7, 0, 5, BORN, HOST, 0, 0, b"body", properties, code, (name,)
        )
        self.store.append(draft)
        self.store.confirm(self.store.commit())
        return name

    def pull(self, place: Place, offset: int, count: int, tags: frozenset[str]) -> PullResult:
        codes = frozenset(map(string_hash, tags))
        found = self.pulls.read(*place, offset, count_max=count, tags=codes)
        return PullResult(found.next_offset, decode_records(b"".join(found.views)))

    def send_back(self, position: int, level: int, limit: int | None) -> None:
        header = SendBackHeader(
            offset=position, group=GROUP, delay_level=level, max_reconsume_times=limit
        )
        draft = self.retries.draft(header, client_version=VERSION, broker_writable=True)
        assert draft is not None
        self.store.append(draft)
        self.store.confirm(self.store.commit())

    def deliver(self) -> None:
        """Deliver what is due, level by level."""
        for level in range(1, len(DELAYS_MS) + 1):
            while isinstance(step := self.delays.next(level), DueBatch):
                position = Position(0)
                for draft in step.drafts:
                    position = self.store.append(draft).end
                self.store.confirm(self.store.commit())
                self.progress.advance(level, step.next_offset, position=position)

    def position(self, place: Place, offset: int) -> int:
        queue = self.store.queue(*place)
        assert queue is not None
        entry = queue.entry(offset)
        assert entry is not None
        return int(entry[0])

    def contents(self, place: Place) -> list[Copy]:
        """Return everything that lies in a queue."""
        queue = self.store.queue(*place)
        found: list[Copy] = []
        for offset in range(queue.end if queue is not None else 0):
            assert queue is not None
            entry = queue.entry(offset)
            assert entry is not None
            view = self.store.view(Position(entry[0]), entry[1])
            assert view is not None
            record = decode_record(view)
            assert record.queue_offset == offset
            found.append(copy_of(record))
        return found


def copy_of(record: Record) -> Copy:
    return Copy(record.properties["UNIQ_KEY"], record.reconsume_times)
