"""Popping over a real store, without the server that drives it, and a crash at any point."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.pop.batch import Batches
from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.in_flight import InFlightTable, Key
from rocketpost.broker.pop.in_order import OrderService
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.receipts import ReceiptService
from rocketpost.broker.pop.scan import QueueScan
from rocketpost.broker.pop.service import PopResult, PopService
from rocketpost.broker.pop.targets import PopRequest, Targets
from rocketpost.broker.pop.watermark import ReviveWatermark
from rocketpost.broker.pull.reader import PullLimits
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_record, pack_host
from rocketpost.errors import StoreFull
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.topic import TopicConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock

BORN = pack_host("10.0.0.9", 4000)
HOST = pack_host("10.0.0.1", 10911)
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_C"
QUEUES = 2


class Driver:
    """A service whose changes are appended as soon as it decides on them, as the server does it."""

    def __init__(self, service: Any, store: Callable[[Any, Change], None]) -> None:
        self.service = service
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    def ack(self, *arguments: Any) -> Change | None:
        return self._stored(self.service.ack(*arguments))

    def ack_all(self, *arguments: Any) -> Change | None:
        return self._stored(self.service.ack_all(*arguments))

    def change_invisible_time(self, *arguments: Any) -> Any:
        return self._stored(self.service.change_invisible_time(*arguments))

    def revive(self) -> list[Change]:
        changes = self.service.revive()
        for change in changes:
            with contextlib.suppress(StoreFull):
                self._stored(change)
        return [change for change in changes if not change.is_settled]

    def pop(self, request: PopRequest) -> PopResult:
        steps = self.service.pop_steps(request)
        try:
            wanted = next(steps)
            while True:
                if wanted is not None:
                    try:
                        self._store(self.service, wanted)
                    except StoreFull as error:
                        wanted = steps.throw(error)
                        continue
                wanted = next(steps)
        except StopIteration as end:
            popped: PopResult = end.value
            return popped

    def _stored(self, change: Change | None) -> Change | None:
        if change is not None:
            self._store(self.service, change)
        return change


class Groups:
    def __init__(self) -> None:
        self.gone: set[str] = set()

    def find(self, group: str) -> object | None:
        return None if group in self.gone else group


class Delivery(NamedTuple):
    """One message in the hands of a consumer."""

    name: str
    key: Key
    offset: int
    due_ms: int
    record: Record


class World:
    """A store and everything about popping on it."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.topics.add_builtin()
        self.topics.update(
            TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        )
        self.groups = Groups()
        self.limits = PullLimits(memory_bytes=2**30)
        self.sent = 0
        self.full = False
        config = StoreConfig(
            root=str(root),
            segment_bytes=256 * 1024,
            queue_file_bytes=2000,
            message_bytes_max=8192,
            index_slot_count=64,
            index_entry_count=65536,
        )
        self.store = MessageStore.open_blocking(
            config, clock=self.clock, on_durable=lambda position: None
        )
        self.saved = b""
        self.saved_batches = b""
        self.storing: list[tuple[Any, Change, list[Appended]]] = []
        self.start()

    def start(self) -> None:
        """Begin as after a start of the process, with the tables as last saved."""
        self.storing = []
        self.offsets = OffsetTable(clock=self.clock)
        if self.saved:
            self.offsets.load(self.saved)
        self.watermark = ReviveWatermark()
        self.in_flight = InFlightTable(self.watermark)
        self.batches = Batches()
        if self.saved_batches:
            self.batches.load(self.saved_batches)
        self.log = PopLog(topic=REVIVE_TOPIC, broker_name="b", store_host=HOST)
        self.progress = PopProgress(
            store=self.store,
            offsets=self.offsets,
            in_flight=self.in_flight,
            batches=self.batches,
            watermark=self.watermark,
            log=self.log,
        )
        self.progress.recover()
        self.targets = Targets(topics=self.topics, random_below=lambda count: 0)
        receipts = ReceiptService(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            in_flight=self.in_flight,
            log=self.log,
            progress=self.progress,
            targets=self.targets,
            clock=self.clock,
            store_host=HOST,
        )
        self.receipts = Driver(receipts, self.put)
        scan = QueueScan(store=self.store, limits=lambda: self.limits)
        self.released: list[str] = []
        ordered = OrderService(
            scan=scan,
            targets=self.targets,
            offsets=self.offsets,
            batches=self.batches,
            watermark=self.watermark,
            log=self.log,
            progress=self.progress,
            clock=self.clock,
            revive_queue_count=2,
        )
        self.ordered = Driver(ordered, self.put)
        ordered.on_release = lambda topic, _: self.released.append(topic)
        self.service = PopService(
            scan=scan,
            targets=self.targets,
            offsets=self.offsets,
            in_flight=self.in_flight,
            log=self.log,
            progress=self.progress,
            clock=self.clock,
            revive_queue_count=2,
        )

    def save(self) -> None:
        self.saved = self.offsets.to_json()

    def save_batches(self) -> None:
        self.saved_batches = self.batches.to_json()

    def crash(self) -> None:
        """Die with everything in the log that was put, answered or not."""
        self.store.confirm(self.store.commit())
        self.start()

    def put(self, service: Any, change: Change) -> None:
        if any(change is each for _, each, _ in self.storing):
            return
        if self.full:
            change.settle([], "no room")
            service.settle(change)
            raise StoreFull("no room")
        appended = [self.store.append(draft) for draft in change.drafts]
        self.storing.append((service, change, appended))

    def commit(self, count: int | None = None) -> None:
        """Store what was appended, or the first records of it, and tell."""
        self.store.confirm(self.store.commit())
        storing, self.storing = self.storing, []
        for service, change, appended in storing:
            change.settle(appended[:count])
            service.settle(change)
        self.in_flight.check()

    def fail(self) -> None:
        """Lose what was appended, and tell."""
        storing, self.storing = self.storing, []
        for service, change, _ in storing:
            change.settle([], "the disk is gone")
            service.settle(change)
        self.in_flight.check()

    def send(self, queue_id: int = 0, *, tag: str = "A", name: str = "") -> str:
        self.sent += 1
        name = name or f"m{self.sent}"
        properties = encode_properties({"UNIQ_KEY": name, "TAGS": tag})
        code = string_hash(tag)
        draft = Draft("T", queue_id, 7, 0, 5, BORN, HOST, 0, 0, b"body", properties, code, (name,))
        self.store.append(draft)
        self.store.confirm(self.store.commit())
        return name

    def request(
        self, queue_id: int = -1, *, tags: frozenset[int] = frozenset(), **more: Any
    ) -> PopRequest:
        topic = self.topics.require("T")
        return PopRequest(topic, more.pop("group", "g"), queue_id, tags=tags, **more)

    def start_pop(self, request: PopRequest | None = None) -> PopResult:
        request = request or self.request()
        driver = self.ordered if request.in_order else Driver(self.service, self.put)
        return driver.pop(request)

    def delivered(self, popped: PopResult, group: str = "g") -> list[Delivery]:
        """Return what a consumer gets of a pop that is stored."""
        due_ms = popped.pop_ms + popped.invisible_ms
        found = []
        for part in popped.parts:
            key = Key(part.topic, group, part.queue_id, part.start_offset, popped.pop_ms)
            for offset, view in zip(part.offsets, part.views, strict=True):
                record = decode_record(view)
                name = record.properties["UNIQ_KEY"]
                found.append(Delivery(name, key, offset, due_ms, record))
        return found

    def pop(self, request: PopRequest | None = None) -> list[Delivery]:
        request = request or self.request()
        popped = self.start_pop(request)
        self.commit()
        return self.delivered(popped, request.group)

    def pop_names(self, request: PopRequest | None = None) -> list[str]:
        return [each.name for each in self.pop(request)]

    def ack(self, delivery: Delivery) -> None:
        self.receipts.ack(delivery.key, [delivery.offset])
        self.commit()

    def change(self, delivery: Delivery, invisible_ms: int) -> Delivery:
        changed = self.receipts.change_invisible_time(delivery.key, delivery.offset, invisible_ms)
        self.commit()
        key = delivery.key._replace(start_offset=delivery.offset, pop_ms=changed.pop_ms)
        return delivery._replace(key=key, due_ms=changed.pop_ms + invisible_ms)

    def revive(self) -> None:
        while self.receipts.revive():
            self.commit()

    def close(self) -> None:
        self.store.close_blocking()
