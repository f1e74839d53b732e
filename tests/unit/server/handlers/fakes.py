"""Fakes that the tests of handlers share: a connection that remembers, a store in a dict."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping

import msgspec

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.record import Record, decode_record, encode_record, pack_host
from rocketpost.errors import ConnectionLost, RequestTimeout
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.store.files import RealFiles
from rocketpost.store.integrity.damage import DamageRegister


class FakeConnection:
    """Takes what a handler sends; decodes it the way a client would."""

    def __init__(self, peer: str = "10.0.0.3:40000") -> None:
        self.peer_text = peer
        self.is_open = True
        self.unanswered_count = 0
        self.responses: list[Command] = []
        self.oneways: list[tuple[int, dict[str, str]]] = []
        self.oneway_bodies: list[bytes] = []
        self.requests: list[tuple[int, dict[str, str], bytes]] = []
        self.client_answer: Command | Exception = Command(0, body=b'{"from":"client"}')

    def work(self, steps: Generator[None, None, None]) -> None:
        for _ in steps:
            pass

    def end_turn(self) -> None:
        """Serve whatever comes next."""

    def answer(self, *buffers: bytes | memoryview) -> None:
        frames = FrameDecoder().feed(b"".join(buffers))
        self.responses += map(decode_command, frames)

    def send_oneway(self, code: int, *, fields: Mapping[str, str], body: bytes = b"") -> None:
        if not self.is_open:
            raise ConnectionLost("closed")
        self.oneways.append((code, dict(fields)))
        self.oneway_bodies.append(body)

    async def request(
        self, code: int, *, fields: Mapping[str, str], body: bytes | memoryview, timeout: float
    ) -> Command:
        assert timeout == (5.0 if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT else 10.0)
        self.requests.append((code, dict(fields), bytes(body)))
        if isinstance(self.client_answer, Exception):
            raise self.client_answer
        return self.client_answer

    def close(self) -> None:
        self.is_open = False


TIMED_OUT = RequestTimeout("too late")


class Caller:
    """Sends requests to handlers through the real dispatcher."""

    def __init__(self, *handlers: object) -> None:
        self.dispatcher = Dispatcher(
            route
            for handler in handlers
            for route in handler.routes()  # type: ignore[attr-defined]
        )

    async def __call__(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        connection: FakeConnection | None = None,
        version: int = 479,
        flag: int = 0,
    ) -> Command:
        connection = connection or FakeConnection()
        command = Command(
            code, opaque=7, version=version, flag=flag, text_fields=dict(fields or {}), body=body
        )
        before = len(connection.responses)
        self.dispatcher.handle(connection, command)  # type: ignore[arg-type]
        async with asyncio.timeout(2):
            while len(connection.responses) == before:
                await asyncio.sleep(0)
        (response,) = connection.responses[before:]
        assert response.opaque == 7
        return response


def json_of(response: Command) -> object:
    assert response.code == 0, response.remark
    return msgspec.json.decode(response.body)


class FakeQueue:
    """A queue of store times; entry n is at position 1000 n."""

    def __init__(self, topic: str, times: Iterable[int], first: int = 0) -> None:
        self.topic = topic
        self.times = list(times)
        self.first = QueueOffset(first)

    @property
    def end(self) -> QueueOffset:
        return QueueOffset(self.first + len(self.times))

    @property
    def next_offset(self) -> QueueOffset:
        return QueueOffset(self.end + 1)

    def store_time(self, offset: int) -> int:
        return self.times[offset - self.first] if self.first <= offset < self.end else -1

    def offset_at(self, timestamp_ms: int, *, upper: bool) -> QueueOffset:
        later = [at for at, ms in enumerate(self.times) if ms >= timestamp_ms]
        found = later[0] if later else len(self.times)
        return QueueOffset(self.first + (max(0, found - 1) if upper else found))

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        if not self.first <= offset < self.end:
            return None
        return offset * 1000, 100, offset % 2


class FakeDeletion:
    def __init__(self, done: list[str], topic: str) -> None:
        self._done = done
        self._topic = topic

    def finish_blocking(self) -> None:
        self._done.append(self._topic)


class FakeStore:
    def __init__(self) -> None:
        self.table: dict[tuple[str, int], FakeQueue] = {}
        self.records: dict[int, bytes] = {}
        self.found: list[Position] = []
        self.asked: list[dict[str, object]] = []
        self.deleted: list[str] = []
        self.first_position = Position(0)
        self.end_position = Position(5000)
        self.durable_position = Position(4000)
        self.confirmed_position = Position(4500)

    @property
    def queues(self) -> list[FakeQueue]:
        return list(self.table.values())

    def queue(self, topic: str, queue_id: int) -> FakeQueue | None:
        return self.table.get((topic, queue_id))

    def put_record(self, position: int, topic: str = "T", body: bytes = b"hello") -> bytes:
        host = pack_host("10.0.0.1", 10911)
        record = Record(
            size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=0, position=position,
            sys_flag=0, born_ms=1, born_host_bytes=host, store_ms=2, store_host_bytes=host,
            reconsume_times=0, prepared_position=0, body=body, topic=topic, properties_bytes=b"",
        )  # fmt: skip
        self.records[position] = b"".join(encode_record(record))
        return self.records[position]

    @property
    def damage(self) -> DamageRegister:
        return DamageRegister(RealFiles(), "nowhere/damage.json")

    def record_at(self, position: int) -> Record | None:
        data = self.records.get(position)
        return None if data is None else decode_record(data)

    def view(self, position: int, size: int) -> memoryview | None:
        data = self.records.get(position)
        return None if data is None else memoryview(data)[:size]

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        self.asked.append(
            {"topic": topic, "key": key, "max": count_max, "begin": begin_ms, "end": end_ms}
        )
        return self.found[:count_max]

    def store_time_at(self, position: int) -> int:
        return 77

    async def delete_queues(self, topic: str) -> FakeDeletion:
        for key in [key for key in self.table if key[0] == topic]:
            del self.table[key]
        return FakeDeletion(self.deleted, topic)


class FakeCheckpoint:
    def __init__(self) -> None:
        self.master_flushed = 0
        self.saved: list[int] = []
        self.error: Exception | None = None

    def save_blocking(self) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append(self.master_flushed)


class Saves:
    """Stands for the tables on disk: counts how often somebody waited for them."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.count += 1


NOTIFY = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
