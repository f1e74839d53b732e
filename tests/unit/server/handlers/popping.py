"""Popping over a real store, asked through its handlers; a test decides when things are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pop.batch import Batches
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.client.compression import decompress
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.pop import PopResponse, Receipt, parse_receipt, parse_start_offsets
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_records, pack_host
from rocketpost.errors import StoreFull
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.topic import TopicConfig
from rocketpost.server.features.pop import PopFeature
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock

from ..contexts import broker_context, open_now, some_tables
from .fakes import Caller, FakeConnection

HOST = pack_host("10.0.0.1", 10911)


class Link(FakeConnection):
    """A connection whose requests may be answered later."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered = 0
        """Requests that count as unanswered; a test counts those that it sends."""

    def no_answer(self) -> None:
        self.unanswered -= 1

    def answer(self, *buffers: bytes | memoryview) -> None:
        self.unanswered -= 1
        super().answer(*buffers)

    def send(self, *buffers: bytes | memoryview) -> None:
        super().answer(*buffers)


class PopWorld:
    """A broker's popping."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.topics.add_builtin()
        self.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
        self.groups = GroupTable(clock=self.clock)
        self.offsets = OffsetTable(clock=self.clock)
        config = StoreConfig(
            root=str(root),
            segment_bytes=256 * 1024,
            queue_file_bytes=2000,
            message_bytes_max=8192,
            index_slot_count=64,
            index_entry_count=4096,
        )
        self.store = MessageStore.open_blocking(
            config, clock=self.clock, on_durable=lambda position: None
        )
        self.is_slow = False
        self.is_full = False
        self.storing: list[tuple[asyncio.Future[list[Appended]], list[Appended]]] = []
        self.link = Link()
        self.start()

    def start(self) -> None:
        """Start, or start again after a crash, with the tables as they are."""
        self.context = broker_context(
            store=self.store,
            tables=some_tables(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                batches=Batches(),
            ),
            filters=Filters(table=FilterTable(clock=self.clock), unpack=decompress),
            membership=Membership(clock=self.clock),
            stats=BrokerStats(clock=self.clock),
            clock=self.clock,
            put=self.put,
        )
        self.feature = PopFeature(self.context)
        open_now(self.feature)
        self.configure()
        self.caller = Caller(self.feature)

    def configure(self, **settings: object) -> None:
        self.feature.configure(BrokerConfig(**settings), StoreConfig(root="."))  # type: ignore[arg-type]

    def put(self, drafts: list[Draft]) -> asyncio.Future[list[Appended]]:
        if self.is_full:
            raise StoreFull("no room")
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        self.storing.append((future, [self.store.append(draft) for draft in drafts]))
        if not self.is_slow:
            asyncio.get_running_loop().call_soon(self.commit)
        return future

    def commit(self) -> None:
        arrivals = self.store.confirm(self.store.commit())
        storing, self.storing = self.storing, []
        for future, appended in storing:
            future.set_result(appended)
        self.tell(arrivals)

    def send(self, queue_id: int = 0, *, tag: str = "A", body: bytes = b"body") -> None:
        properties, code = encode_properties({"TAGS": tag}), string_hash(tag)
        draft = Draft("T", queue_id, 0, 0, 5, HOST, HOST, 0, 0, body, properties, code, ())
        self.store.append(draft)
        self.tell(self.store.confirm(self.store.commit()))

    def tell(self, arrivals: list[Arrival]) -> None:
        """Tell features of messages that became visible."""
        for listener in self.feature.arrival_listeners():
            listener(arrivals)

    async def call(self, code: int, **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.caller(code, texts, connection=self.link)

    def ask(self, code: int, **fields: object) -> None:
        """Send a request that need not be answered now."""
        self.link.unanswered += 1
        texts = {name: str(value) for name, value in fields.items()}
        command = Command(code, opaque=7, text_fields=texts)
        self.caller.dispatcher.handle(self.link, command)  # type: ignore[arg-type]

    async def pop(self, **fields: object) -> Command:
        return await self.call(RequestCode.POP_MESSAGE, **(POP | fields))

    async def pop_all(self, **fields: object) -> list[tuple[Record, Receipt]]:
        answer = await self.pop(**fields)
        assert answer.code == 0, answer.remark
        return received(answer)

    async def ack(self, receipt: Receipt, *, topic: str = "T") -> Command:
        return await self.call(RequestCode.ACK_MESSAGE, **about(receipt, topic=topic))

    def close(self) -> None:
        self.feature.close()
        self.store.close_blocking()


POP: dict[str, object] = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": -1,
    "maxMsgNums": 32,
    "invisibleTime": 60_000,
    "pollTime": 0,
    "bornTime": 0,
    "initMode": 0,
    "expType": "TAG",
    "exp": "*",
}


def received(answer: Command) -> list[tuple[Record, Receipt]]:
    """Return the messages of an answer with their receipts, as a client makes them."""
    head = answer.read(PopResponse)
    starts = parse_start_offsets(head.start_offset_info or "")
    found = []
    for record in decode_records(answer.body):
        text = record.properties.get("POP_CK")
        receipt = (
            parse_receipt(text)
            if text is not None
            else Receipt(
                starts[0, record.queue_id],
                head.pop_time,
                head.invisible_time,
                head.revive_qid,
                0,
                "b",
                record.queue_id,
                record.queue_offset,
            )
        )
        found.append((record, receipt))
    return found


def about(receipt: Receipt, *, topic: str = "T") -> dict[str, object]:
    """Return the fields of a request about one message."""
    return {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": receipt.queue_id,
        "extraInfo": str(receipt),
        "offset": receipt.offset,
    }
