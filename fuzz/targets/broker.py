"""Every request that a broker serves, against a real broker with a real store.

Promises: each request that wants a response gets exactly one, or is a held pull; nothing logs a
traceback; every stored message can be read; no file appears where none belongs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from pathlib import Path

from fuzz.finding import Find, watched
from fuzz.harness import Exchange
from fuzz.requests import Requests, learnt_headers
from fuzz.supply import Supply
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import encode_command
from rocketpost.server.broker import BrokerServer
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.term import LeaderTerm
from rocketpost.settings import keys_of
from rocketpost.store.config import StoreConfig

_RUNS_A_BROKER = 300
_REQUESTS_MAX = 6
_PATIENCE = 400
_QUEUE_FILE = re.compile(r"consumequeue/[%|a-zA-Z0-9_-]{1,255}/\d{1,5}/\d{20}").fullmatch
_OTHER_FILE = re.compile(
    r"(lock|abort|checkpoint|extent|(damage|scrub)\.json(\.tmp)?|commitlog/allocating/lock"
    r"|commitlog/(allocating/)?\d{20}|index/\d{17}"
    r"|timerwheel(\.journal[01])?|timerlog/\d{20}|config/timercheck(\.bak|\.tmp)?"
    r"|truncating|cut-tails/[\w.-]+|config/known/[\w.]+"
    r"|config/(autoCreatedGroups|autoCreatedTopics|consumerOrderInfo|kvConfig|masterTimer)\.json"
    r"(\.bak|\.tmp)?"
    r"|config/(topics|subscriptionGroup|consumerOffset|brokerOverrides|droppedTopics|delayOffset"
    r"|messageRequestMode|consumerFilter|namedFilters|transactionMetrics|timermetrics|producerState)"
    r"(\.json)?(\.bak|\.tmp)?|dropped/.*)"
).fullmatch


class Target:
    """A broker, made anew now and then so that a find depends on little history."""

    def __init__(self) -> None:
        self._watching = watched()
        self._watch = self._watching.__enter__()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._loop_error)
        self._errors: list[str] = []
        self._broker: BrokerServer | None = None
        self._home = Path()
        self._runs = 0
        self._start()

    def check(self, data: bytes) -> None:
        """Send a few requests on one connection."""
        if self._broker is None or self._runs >= _RUNS_A_BROKER:
            self._stop()
            self._start()
        self._runs += 1
        self._watch.clear()
        try:
            self._loop.run_until_complete(self._run(Supply(data)))
            self._watch.judge()
            if self._errors:
                raise Find("; ".join(self._errors))
            if self._runs % 25 == 0:
                self._check_files()
        except BaseException:
            self._errors.clear()
            self._stop()
            raise

    def close(self) -> None:
        """Stop the broker."""
        self._stop()
        self._loop.close()
        self._watching.__exit__(None, None, None)

    async def _run(self, supply: Supply) -> None:
        assert self._broker is not None
        exchange = self._exchange()
        wanted: set[int] = set()
        stream = b""
        for opaque in range(supply.number(1, _REQUESTS_MAX)):
            frame, wants_answer = self._requests.frame(supply, opaque)
            stream += frame
            if wants_answer:
                wanted.add(opaque)
        exchange.feed(stream)
        await exchange.settle(self._is_idle)
        features = self._term.features
        got: list[int] = []
        for _ in range(_PATIENCE):  # a pop is answered when its checkpoint is stored
            got += [command.opaque for command in exchange.answers() if command.is_response]
            held = features.held
            if exchange.is_closed or len(got) + held >= len(wanted):
                break
            await asyncio.sleep(0.005)
        else:
            raise Find(f"answers to {got} and {held} held, wanted {sorted(wanted)}")
        if len(got) != len(set(got)) or not set(got) <= wanted:
            raise Find(f"answers to {got}, wanted {sorted(wanted)}")
        await exchange.hang_up()
        if features.held:
            raise Find("a pull or pop is held for a connection that is gone")
        self._check_store()

    def _check_store(self) -> None:
        assert self._broker is not None
        store = self._term.context.store
        if self._broker._work is None or self._broker._work.done():
            raise Find(f"the broker's own work ended: {self._broker._work}")
        if not store.writable:
            raise Find(f"the store takes no messages any more: {store.why_not_writable}")
        for queue in list(store.queues):
            for offset in range(max(queue.first, queue.end - 2), queue.end):
                entry = queue.entry(offset)
                record = store.record_at(entry[0]) if entry is not None else None
                if record is None or record.topic != queue.topic or record.queue_offset != offset:
                    raise Find(f"message {offset} of {queue.topic}/{queue.queue_id} is lost")

    def _check_files(self) -> None:
        names = os.listdir(self._home)
        if names != ["store"]:
            raise Find(f"files beside the store: {names}")
        store = self._home / "store"
        for path in store.rglob("*"):
            name = str(path.relative_to(store))
            if path.is_file() and not (_QUEUE_FILE(name) or _OTHER_FILE(name)):
                raise Find(f"a file that does not belong there: {name!r}")

    @property
    def _term(self) -> LeaderTerm:
        assert self._broker is not None
        term = self._broker._term
        assert isinstance(term, LeaderTerm)
        return term

    def _is_idle(self) -> bool:
        assert self._broker is not None
        writer = self._term._sends.writer
        return self._broker._dispatcher.is_idle and not (
            writer._is_scheduled or writer.waiting_count
        )

    def _exchange(self) -> Exchange:
        assert self._broker is not None
        return Exchange(
            on_request=self._broker._dispatcher.handle,
            on_lost=self._broker._term.connection_lost,
            watch=self._watch,
            express=self._broker._dispatcher.take,
        )

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _start(self) -> None:
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._home = Path(tempfile.mkdtemp(prefix="rocketpost-fuzz-", dir=shared))
        self._broker = BrokerServer(
            {
                "storePathRootDir": str(self._home / "store"),
                "brokerName": "broker-a",
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "namesrvAddr": "",
                "mappedFileSizeCommitLog": str(256 * 1024),
                "mappedFileSizeConsumeQueue": "2000",
                "maxMessageSize": "65536",
                "maxHashSlotNum": "64",
                "maxIndexNum": "256",
            }
        )
        self._runs = 0
        self._loop.run_until_complete(self._broker.start())
        self._loop.run_until_complete(self._prepare())

    async def _prepare(self) -> None:
        assert self._broker is not None
        codes = sorted(self._broker._dispatcher.routes)
        exchange = self._exchange()

        def probe(code: int) -> None:
            exchange.feed(encode_command(code, opaque=code))

        headers = learnt_headers(codes, probe)
        await exchange.settle(self._is_idle)
        settings = (*keys_of(BrokerConfig), *keys_of(StoreConfig), "rocketmqHome", "kvConfigPath")
        self._requests = Requests(codes, headers, settings)
        for topic in ("TopicA", "TopicB"):
            for body in (b"one", b"two"):
                fields = {"producerGroup": "P", "topic": topic, "defaultTopic": "TBW102",
                          "queueId": "0", "properties": "KEYS\x01k\x02TAGS\x01A\x02"}  # fmt: skip
                head = encode_command(
                    RequestCode.SEND_MESSAGE, opaque=1, fields=fields, body_bytes=len(body)
                )
                exchange.feed(head + body)
        await exchange.settle(self._is_idle)
        await exchange.hang_up()

    def _stop(self) -> None:
        if self._broker is not None:
            broker, self._broker = self._broker, None
            self._loop.run_until_complete(broker.stop())
        shutil.rmtree(self._home, ignore_errors=True)
