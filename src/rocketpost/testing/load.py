"""Load for a broker that will be killed: sending, reading, committing, creating topics.

Each part records in a :class:`~rocketpost.testing.ledger.Ledger` what it sent, what was
acknowledged and what it saw. All choices come from a ``random.Random``. A part ends with its
connection.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.message import SendResponse
from rocketpost.codec.record import Record
from rocketpost.errors import ClientError, ConnectionLost, Fault
from rocketpost.model.properties import SHARDING_KEY
from rocketpost.testing.ledger import NUMBER_PROPERTY, Ledger
from rocketpost.testing.link import BrokerLink, SendPart

WINDOW: Final = 128
"""Maximum of unanswered sends per stream."""

BODY_BYTES_MAX: Final = 200_000
LARGE_SHARE: Final = 0.01
"""Share of messages that take many pages."""
_BATCH_SHARE: Final = 0.05
_HOLD_MS: Final = 200
_COMMIT_SECONDS: Final = 0.05
_GROUP: Final = "load"
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Answers to messages that are stored, but not as safely as settings demand."""


class LoadQueue(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


class Stream:
    """Sends over one connection, many messages at a time.

    Args:
        link: The connection.
        ledger: The record of everything sent.
        number: The number of the stream in the ledger.
        rng: The source of its choices.
        large_share: Share of messages that take many pages.
        rest_seconds: Maximum pause between bursts.
        keys: Number of sharding keys, each with its own queue; 0 for none.
        may_skip: Whether a message without an answer may be missing although later ones are stored:
            a follower may have passed them on to different leaders.
    """

    def __init__(
        self,
        link: BrokerLink,
        ledger: Ledger,
        number: int,
        *,
        rng: random.Random,
        large_share: float = LARGE_SHARE,
        rest_seconds: float = 0.02,
        keys: int = 0,
        may_skip: bool = False,
    ) -> None:
        self._may_skip = may_skip
        self._large_share = large_share
        self._rest_seconds = rest_seconds
        self._keys = keys
        self._link = link
        self._ledger = ledger
        self._number = number
        self._rng = rng
        self._room = asyncio.Semaphore(WINDOW)
        self._waiting: set[asyncio.Future[Command]] = set()
        self.refusals: Counter[str] = Counter()
        """Number of refusals by reason."""
        self.doubts: Counter[int] = Counter()
        """Number of answers, by code, that leave open whether the message lasts."""

    async def run(self, queues: list[LoadQueue]) -> None:
        """Send in bursts until the connection is gone."""
        rng = self._rng
        while self._link.is_open:
            for _ in range(rng.randrange(1, 24)):
                if self._keys:
                    key = rng.randrange(self._keys)
                    await self.send(queues[key % len(queues)], key=f"key{key}")
                else:
                    await self.send(rng.choice(queues), count=self._batch_count())
            await asyncio.sleep(rng.uniform(0, self._rest_seconds))

    async def send(
        self, queue: LoadQueue, *, count: int = 1, key: str | None = None
    ) -> asyncio.Future[Command] | None:
        """Send one message or a batch; None if the connection is gone."""
        await self._room.acquire()
        numbers = [self._ledger.next_number() for _ in range(count)]
        parts = [self._part(number, small=count > 1, key=key) for number in numbers]
        for number, part in zip(numbers, parts, strict=True):
            self._ledger.note(
                number,
                topic=queue.topic,
                queue_id=queue.queue_id,
                stream=self._number,
                body=part.body,
                properties=part.properties,
            )
        try:
            future = self._link.send(queue.topic, queue.queue_id, parts)
        except ConnectionLost:
            self._room.release()
            return None
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._on_answer(done, numbers))
        return future

    async def settle(self) -> None:
        """Return once every send has been answered or has failed."""
        if self._waiting:
            await asyncio.wait(list(self._waiting))

    def _on_answer(self, future: asyncio.Future[Command], numbers: list[int]) -> None:
        self._room.release()
        self._waiting.discard(future)
        if future.cancelled() or future.exception() is not None:
            if self._may_skip:
                self._refuse(numbers)
            return  # it is unknown whether the message is stored
        answer = future.result()
        if answer.code == ResponseCode.SUCCESS:
            first = answer.read(SendResponse).queue_offset
            for at, number in enumerate(numbers):
                self._ledger.acknowledge(number, first + at)
        elif answer.code in _STORED:
            self.doubts[answer.code] += len(numbers)
        else:
            self.refusals[f"{answer.code}: {answer.remark}"] += 1
            self._refuse(numbers)

    def _refuse(self, numbers: list[int]) -> None:
        for number in numbers:
            self._ledger.refuse(number)

    def _batch_count(self) -> int:
        return self._rng.randrange(2, 9) if self._rng.random() < _BATCH_SHARE else 1

    def _part(self, number: int, *, small: bool, key: str | None) -> SendPart:
        rng = self._rng
        large = not small and rng.random() < self._large_share
        size = rng.randrange(20_000, BODY_BYTES_MAX) if large else rng.randrange(1, 1200)
        properties = {
            "UNIQ_KEY": unique_key(number),
            NUMBER_PROPERTY: str(number),
            "TAGS": f"tag{number % 7}",
            "ünïcode": "\u2713" * (number % 5 + 1),
        }
        if key is not None:
            properties[SHARDING_KEY] = key
        return SendPart(rng.randbytes(size), properties)


class Reader:
    """Reads queues as they grow and keeps its position in each."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.positions: dict[LoadQueue, int] = {}

    async def run(self, link: BrokerLink, queues: Iterable[LoadQueue]) -> None:
        """Follow some queues until the connection is gone."""
        await asyncio.gather(*(self._follow(link, queue) for queue in queues))

    async def _follow(self, link: BrokerLink, queue: LoadQueue) -> None:
        while link.is_open:
            position = self.positions.get(queue, 0)
            try:
                found = await link.pull(*queue, position, hold_ms=_HOLD_MS)
            except (ClientError, Fault):
                return
            for record in found.records:
                self._ledger.see(record)
            if found.records:
                self.positions[queue] = found.records[-1].queue_offset + 1


class Commits:
    """Commits offsets of a group, and checks that they survive.

    Args:
        grace: Seconds after which a commit must be on disk.
    """

    def __init__(self, ledger: Ledger, *, grace: float) -> None:
        self._ledger = ledger
        self._grace = grace
        self._acknowledged: dict[LoadQueue, list[tuple[float, int]]] = {}
        self._tried: dict[LoadQueue, set[int]] = {}
        self._owed: dict[LoadQueue, int] = {}

    async def run(self, link: BrokerLink, reader: Reader) -> None:
        """Commit the reader's positions repeatedly, until the connection is gone."""
        while link.is_open:
            for queue, position in list(reader.positions.items()):
                try:
                    await self._commit(link, queue, position)
                except (ClientError, Fault):
                    return
            await asyncio.sleep(_COMMIT_SECONDS)

    def note_end(self, *, clean: bool) -> None:
        """Record the end of the broker: commits older than the grace must be on disk."""
        limit = time.monotonic() - (0 if clean else self._grace)
        for queue, commits in self._acknowledged.items():
            safe = [offset for when, offset in commits if when <= limit]
            self._owed[queue] = max(self._owed.get(queue, 0), *safe, 0)
            commits.clear()

    async def check(self, link: BrokerLink) -> int:
        """Compare the broker's offsets with those it must have; return the number of checks."""
        for queue, tried in self._tried.items():
            found = await link.committed_offset(_GROUP, *queue)
            end = await link.max_offset(*queue)
            owed = self._owed.get(queue, 0)
            if (found or 0) < owed:
                self._complain(queue, f"{owed} was committed long ago, but it is {found}")
            if found is not None and found > end:
                self._complain(queue, f"it is {found}, beyond the end {end} of the queue")
            if found is not None and found not in tried:
                self._complain(queue, f"it is {found}, which nobody committed")
        return len(self._tried)

    async def _commit(self, link: BrokerLink, queue: LoadQueue, position: int) -> None:
        self._tried.setdefault(queue, set()).add(position)
        await link.commit_offset(_GROUP, *queue, position)
        self._acknowledged.setdefault(queue, []).append((time.monotonic(), position))

    def _complain(self, queue: LoadQueue, text: str) -> None:
        topic, queue_id = queue
        self._ledger.violations.append(f"committed offset of {topic}/{queue_id}: {text}")


class Churn:
    """Creates, fills and deletes one topic repeatedly, one step at a time."""

    def __init__(self, ledger: Ledger, topic: str, *, queue_nums: int) -> None:
        self._ledger = ledger
        self._queues = [LoadQueue(topic, queue_id) for queue_id in range(queue_nums)]
        self.topic = topic
        self.is_deleting = False
        """Whether a deletion was sent and not answered."""

    async def run(self, link: BrokerLink, stream: Stream, rng: random.Random) -> None:
        """Repeat until the connection is gone."""
        try:
            while link.is_open:
                await link.create_topic(self.topic, len(self._queues))
                for _ in range(rng.randrange(0, 12)):
                    await stream.send(rng.choice(self._queues))
                await stream.settle()
                await asyncio.sleep(rng.uniform(0, 0.05))
                self._ledger.begin_delete(self.topic)
                self.is_deleting = True
                await link.delete_topic(self.topic)
                self.is_deleting = False
                self._ledger.end_delete(self.topic)
        except (ClientError, Fault):
            return

    async def check(self, link: BrokerLink) -> None:
        """Check the topic after a restart."""
        found = []
        if await link.has_topic(self.topic):
            for queue in self._queues:
                first = await link.min_offset(*queue)
                end = await link.max_offset(*queue)
                found.append((queue, first, await link.read(*queue, first, end)))
        if self.is_deleting:
            records = [record for _, _, records in found for record in records]
            self._ledger.settle_delete(self.topic, [_number_of(record) for record in records])
            self.is_deleting = False
        for queue, first, records in found:
            self._ledger.check_queue(*queue, records, first=first)
        if not found:
            self._ledger.check_absent(self.topic)


def _number_of(record: Record) -> int:
    text = record.properties.get(NUMBER_PROPERTY, "")
    return int(text) if text.isdecimal() else 0


def unique_key(number: int) -> str:
    """Return the unique key of the message with this number."""
    return f"{number:032X}"
