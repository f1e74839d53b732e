"""A client that talks to a hostile name server and a hostile broker."""

from __future__ import annotations

import asyncio
import time
import zlib

from fuzz.finding import Find, watched
from fuzz.json_shapes import body
from fuzz.supply import Supply
from rocketpost.client.consumer.fetch import PullQuery, PullStatus, _found
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import RouteCache
from rocketpost.codec.command import Command, decode_command, encode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.headers.message import PullResponse, SendResponse
from rocketpost.codec.headers.offset import OffsetResponse
from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.errors import RocketpostError
from rocketpost.model.group import parse_tags
from rocketpost.model.route import MessageQueue

_HOST = pack_host("10.0.0.1", 10911)
_WISH = PullQuery(MessageQueue("broker-a", 0, "TopicA"), 0, parse_tags("TopicA", "A", version=1))
_FIELDS = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId", "msgId", "queueId",
           "queueOffset", "transactionId", "offset")  # fmt: skip
_QUEUES_MAX = 1_000_000
_FOUND = int(PullStatus.FOUND.value)


class Target:
    """Reads routes, pulled messages and acknowledgements."""

    def __init__(self) -> None:
        self._watching = watched()
        self._watch = self._watching.__enter__()
        self._loop = asyncio.new_event_loop()

    def check(self, data: bytes) -> None:
        """Let one answer arrive."""
        supply = Supply(data)
        self._watch.clear()
        start = time.process_time()
        try:
            if supply.chance(2):
                self._loop.run_until_complete(self._route(supply))
            else:
                self._pull(supply)
        except RocketpostError:
            pass
        self._watch.judge()
        if time.process_time() - start > 5:
            raise Find("one answer took five seconds")

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()
        self._watching.__exit__(None, None, None)

    async def _route(self, supply: Supply) -> None:
        async def ask(code: int, fields: dict[str, str]) -> Command:
            code = supply.pick((0, 0, 0, 17, 1))
            text = body(supply, ("broker-a", "TopicA"), ("route",))
            (frame,) = FrameDecoder().feed(
                encode_command(code, opaque=1, flag=1, body_bytes=len(text)) + text
            )
            return decode_command(frame)

        routes = RouteCache(ask)
        try:
            found = await routes.publish("TopicA")
            if len(found.queues) > _QUEUES_MAX:
                raise Find(f"{len(found.queues)} queues of one topic")
            queue = found.next()
            routes.master(queue.broker_name)
            routes.replicas(queue.broker_name).get(supply.number(0, 2))
            routes.master_or_first(queue.broker_name)
            if len(await routes.subscribe("TopicA")) > _QUEUES_MAX:
                raise Find("too many queues to read")
            routes.some_broker("TopicA")
            routes.broker_addresses(masters_only=False)
        finally:
            routes.some_broker("TopicA")
            routes.drop_offline()
            await routes.close()

    def _pull(self, supply: Supply) -> None:
        fields = {name: supply.text(("0", "1", "7")) for name in _FIELDS}
        records = b"".join(_record(supply) for _ in range(supply.number(0, 3)))
        if supply.chance(4):
            records += supply.raw(60)
        head = encode_command(_FOUND, opaque=1, flag=1, fields=fields, body_bytes=len(records))
        (frame,) = FrameDecoder().feed(head + records)
        command = decode_command(frame)
        for cls in (SendResponse, OffsetResponse):
            try:
                command.read(cls)
            except RocketpostError:
                continue
        result = _found(_WISH, command.read(PullResponse), command)
        for message in result.messages:
            _use(message)


def _record(supply: Supply) -> bytes:
    content = supply.raw(60)
    if supply.chance(2):
        content = zlib.compress(content)
    record = Record(
        size=0, magic=0, body_crc=0, queue_id=supply.number(0, 9), flag=0, queue_offset=0,
        position=0, sys_flag=supply.number(0, 0xFFFF), born_ms=1, born_host_bytes=_HOST,
        store_ms=2, store_host_bytes=_HOST, reconsume_times=0, prepared_position=0, body=content,
        topic=supply.pick(("", "T", "%RETRY%g", "T" * 200)),
        properties_bytes=supply.text(("TAGS\x01A\x02", "UNIQ_KEY\x01k\x02")).encode(),
    )  # fmt: skip
    return b"".join(encode_record(record))


def _use(message: ReceivedMessage) -> None:
    repr(message)
    for name in dir(ReceivedMessage):
        if not name.startswith("_"):
            try:
                getattr(message, name)
            except RocketpostError:
                continue
