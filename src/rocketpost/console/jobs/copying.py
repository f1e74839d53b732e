"""The job that copies messages to a topic, of the same or of another cluster: each once.

Queues are copied one after the other, each in its order, one message at a time. The job's file has
the next offset of each queue, at most a second old. So after a kill some copies may exist
already: they follow each other, and are found by their ids, which are derived from the job and the
original. The search ends when more messages in a row have no copy than can have been refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Final

from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import publish_queues
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.message import SendMessageV2, SendResponse
from rocketpost.codec.properties import encode_properties
from rocketpost.console.jobs.record import JobEvent, JobRecord
from rocketpost.console.jobs.runner import Job, JobStoppedError
from rocketpost.errors import Fault, LocalProtocolError, RouteNotFound
from rocketpost.filter import compile_filter
from rocketpost.model import properties as names
from rocketpost.model.group import Subscription
from rocketpost.model.route import BrokerData, MessageQueue
from rocketpost.model.sysflag import COMPRESSED, COMPRESSION_MASK

KIND: Final = "copy"
ORIGIN: Final = "CONSOLE_ORIGIN"
"""The property of a message that was made from another one: the id of that one."""
SETTLE_SECONDS: Final = 3.0
"""Time in which the last send of a killed run may still be stored."""
_GROUP: Final = "console_producer"
_KEPT: Final = frozenset({names.KEYS, names.TAGS, names.SHARDING_KEY})
_PULL_SECONDS: Final = 10.0
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_REFUSED_MAX: Final = 20
"""Refusals in a row that end the job."""


def parse_places(text: str) -> list[tuple[str, int, int, int]]:
    """Return broker, queue, first offset and end of ``broker:queue:begin:end,...``."""
    found = []
    for part in filter(None, text.split(",")):
        broker, queue_id, begin, end = part.rsplit(":", 3)
        found.append((broker, int(queue_id), int(begin), int(end)))
    return found


def make_filter(fields: dict[str, str]) -> Callable[[ReceivedMessage], bool]:
    """Return the function that tells whether a message is to be copied.

    Raises:
        FilterError: The expression is wrong.
    """
    tags = frozenset(part.strip() for part in fields.get("tags", "").split("||")) - {"", "*"}
    expression = compile_filter(fields["sql"]) if fields.get("sql") else None

    def matches(message: ReceivedMessage) -> bool:
        if tags and message.tags not in tags:
            return False
        return expression is None or expression.matches(message.properties) is True

    return matches


def copy_id(record: JobRecord, message: ReceivedMessage) -> str:
    """Return the unique id of a copy: sixteen bytes in hexadecimal digits, as others have.

    The time since the start of the month is 0, because Java's tools search from that time on.
    """
    text = f"{record.id} {message.offset_id} {message.store_ms}"
    digest = hashlib.sha256(text.encode()).digest()
    return (digest[:10] + bytes(4) + digest[10:12]).hex().upper()


async def run_copying(job: Job) -> None:
    """Copy the messages of a job."""
    record = job.record
    target = await _Target.find(job.other, record.fields["target"])
    copier = _Copier(job, target, rate=float(record.fields.get("rate") or 100))
    if job.run_before:
        await asyncio.sleep(SETTLE_SECONDS)
    for broker, queue_id, begin, end in parse_places(record.fields["places"]):
        queue = MessageQueue(broker, queue_id, record.fields["topic"])
        place = f"{broker}:{queue_id}"
        copier.looks = _REFUSED_MAX if job.run_before else 0
        await copier.copy(queue, place, record.offsets.get(place, begin), end)


class _Target:
    """The topic that copies go to."""

    def __init__(self, admin: AdminClient, queues: list[MessageQueue], brokers: list[BrokerData]):
        self.admin = admin
        self.queues = queues
        self.brokers = brokers

    @classmethod
    async def find(cls, admin: AdminClient, topic: str) -> _Target:
        """Find the queues of a topic.

        Raises:
            RouteNotFound: There is no such topic, or it takes no messages.
        """
        route = await admin.cluster.route(topic)
        queues = publish_queues(topic, route)
        if not queues:
            raise RouteNotFound(f"no broker takes messages of the topic {topic}")
        return cls(admin, queues, [each for each in route.broker_datas if each.master])

    async def find_copy(self, topic: str, unique_id: str) -> str:
        """Return the offset id of a copy; empty if there is none."""
        for broker in self.brokers:
            for each in await self.admin.messages.indexed_at(broker, topic, unique_id):
                return each.offset_id
        return ""


class _Copier:
    """Copies messages one after the other. Belongs to the event loop."""

    def __init__(self, job: Job, target: _Target, *, rate: float) -> None:
        self._job = job
        self._target = target
        self._topic = job.record.fields["target"]
        self._seconds = 1.0 / rate
        self._next_at = 0.0
        self._matches = make_filter(job.record.fields)
        self._refused = 0
        self.looks = 0
        """Messages without a copy until none can exist any more."""

    async def copy(self, queue: MessageQueue, place: str, offset: int, end: int) -> None:
        """Copy the messages of a queue between two offsets."""
        record = self._job.record
        fetcher = Fetcher(self._job.client.session, TOOLS_GROUP)
        while offset < end:
            wish = PullQuery(queue, offset, Subscription(topic=queue.topic), count_max=32)
            result = await fetcher.pull(wish, timeout=_PULL_SECONDS)
            for message in result.messages:
                if not offset <= message.queue_offset < end:
                    continue
                if self._matches(message):
                    await self._copy_one(queue, message)
                else:
                    record.counts["filtered"] = record.counts.get("filtered", 0) + 1
                record.offsets[place] = message.queue_offset + 1
                self._job.check()
            if result.status is PullStatus.NO_NEW_MSG:
                break
            offset = max(result.next_offset, offset + 1)
            record.offsets[place] = min(offset, end)
        record.offsets[place] = end

    async def _copy_one(self, queue: MessageQueue, message: ReceivedMessage) -> None:
        unique_id = copy_id(self._job.record, message)
        found = ""
        if self.looks:
            found = await self._target.find_copy(self._topic, unique_id)
            self.looks = _REFUSED_MAX if found else self.looks - 1
        outcome, reason = "already_sent" if found else "sent", ""
        if not found:
            await self._pace()
            try:
                found = await self._send(queue, message, unique_id)
                self._refused = 0
            except (Fault, LocalProtocolError) as error:
                outcome, reason = "refused", str(error)
                self._refused += 1
        self._job.record.note(
            JobEvent(
                id=message.offset_id,
                topic=self._topic,
                outcome=outcome,
                copy_id=found,
                reason=reason,
            )
        )
        if self._refused >= _REFUSED_MAX:
            raise JobStoppedError(reason)

    async def _send(self, queue: MessageQueue, message: ReceivedMessage, unique_id: str) -> str:
        # Messages of one queue go to one queue, so that they stay in order.
        here = [each for each in self._target.queues if each.broker_name == queue.broker_name]
        queues = here or self._target.queues
        goal = queues[queue.queue_id % len(queues)]
        record, session = message.record, self._target.admin.session
        kept = {
            name: value
            for name, value in message.properties.items()
            if name in _KEPT or name not in names.RESERVED
        }
        kept |= {
            names.UNIQUE_KEY: unique_id,
            names.WAIT_STORE: "true",
            names.TRANSFER_FLAG: "true",  # typed topics take it although it is not delayed any more
            ORIGIN: message.offset_id,
        }
        response = await session.call(
            session.routes.master(goal.broker_name),
            RequestCode.SEND_MESSAGE_V2,
            SendMessageV2(
                producer_group=_GROUP,
                topic=self._topic,
                queue_id=goal.queue_id,
                sys_flag=record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
                born_timestamp=time.time_ns() // 1_000_000,
                flag=record.flag,
                properties=encode_properties(kept).decode(),
                broker_name=goal.broker_name,
            ),
            body=bytes(record.body),
            accept=_STORED,
        )
        return response.read(SendResponse).msg_id

    async def _pace(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self._next_at - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        self._next_at = max(self._next_at, loop.time() - 1.0) + self._seconds
