"""Load on a group that goes on through all faults: sends, reads and commits at any member.

Followers pass sends and commits on to the leader, so each connection may lead to any member. What
was sent, acknowledged and seen is noted in a ledger, which knows nothing of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from chaos.group.members import Member, Members
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ClientError, Fault
from rocketpost.testing.ledger import Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LoadQueue, Reader, Stream

TOPICS: Final = ("alpha", "beta")
QUEUE_NUMS: Final = 3
QUEUES: Final = [LoadQueue(topic, queue) for topic in TOPICS for queue in range(QUEUE_NUMS)]
GROUP: Final = "readers"
OFFSETS_SECONDS: Final = 2.0
"""Age of a commit that must survive a fault: offsets are written once a second."""
_STREAMS: Final = 2
_REST_SECONDS: Final = 0.25
_LARGE_SHARE: Final = 0.003
_CONNECTION_SECONDS: Final = (0.5, 5.0)
_AGAIN_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 3.0
_COMMIT_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 3.0


class GroupLoad:
    """Sends, reads and commits. Owned by the loop.

    Args:
        members: The group.
        ledger: Gets everything that happens.
        rng: The source of all choices.
    """

    def __init__(self, members: Members, ledger: Ledger, rng: random.Random) -> None:
        self._members = members
        self._ledger = ledger
        self._rng = rng
        self._stream_count = 0
        self._reader = Reader(ledger)
        self.commits = GroupCommits(ledger)
        """The offsets that were committed."""
        self.refusals: Counter[str] = Counter()
        """Number of refusals by reason."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Put load on the group until the block ends."""
        work = [self._send_always() for _ in range(_STREAMS)]
        tasks = [asyncio.create_task(each) for each in (*work, self._read_always())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()  # it ended by itself, so by a bug

    async def until_acknowledged(self, members: Sequence[Member], *, seconds: float) -> float:
        """Send single messages until one is acknowledged; returns the seconds that it took.

        Raises:
            TimeoutError: None was.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(seconds):
            while True:
                for member in members:
                    if await self._probe(member):
                        return loop.time() - began
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _probe(self, member: Member) -> bool:
        if not member.is_serving:
            return False
        with contextlib.suppress(ClientError, TimeoutError):
            async with member.link() as link, asyncio.timeout(_ANSWER_SECONDS):
                sent = await self._stream(link).send(self._rng.choice(QUEUES))
                return sent is not None and (await sent).code == ResponseCode.SUCCESS
        return False

    def _stream(self, link: BrokerLink) -> Stream:
        self._stream_count += 1
        return Stream(
            link,
            self._ledger,
            self._stream_count,
            rng=random.Random(self._rng.random()),
            rest_seconds=_REST_SECONDS,
            large_share=_LARGE_SHARE,
            may_skip=True,
        )

    async def _send_always(self) -> None:
        while True:
            if not (serving := self._members.serving):
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            try:
                async with self._rng.choice(serving).link() as link:
                    await self._send_over(link)
            except ClientError:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _send_over(self, link: BrokerLink) -> None:
        """Send for a while, or until the connection is gone."""
        stream = self._stream(link)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(*_CONNECTION_SECONDS)):
                    await stream.run(QUEUES)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await stream.settle()
            self.refusals += stream.refusals

    async def _read_always(self) -> None:
        while True:
            if not (serving := self._members.serving):
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            with contextlib.suppress(ClientError, Fault, TimeoutError):
                async with (
                    self._rng.choice(serving).link() as link,
                    asyncio.timeout(self._rng.uniform(*_CONNECTION_SECONDS)),
                ):
                    await asyncio.gather(
                        self._reader.run(link, QUEUES), self.commits.run(link, self._reader)
                    )
            await asyncio.sleep(_AGAIN_SECONDS)


class GroupCommits:
    """Commits the positions of a reader, and knows which of them must survive a fault.

    A commit that was not answered may arrive late, after newer ones: it makes its queue free to go
    back so far.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._acknowledged: dict[LoadQueue, list[tuple[float, int]]] = {}
        self._tried: dict[LoadQueue, set[int]] = {}
        self._open: dict[LoadQueue, int] = {}
        self._owed: dict[LoadQueue, int] = {}
        self.checked = 0
        """Number of comparisons in which an offset was owed."""

    async def run(self, link: BrokerLink, reader: Reader) -> None:
        """Commit the reader's positions repeatedly, until the connection is gone."""
        while link.is_open:
            for queue, position in list(reader.positions.items()):
                await self._commit(link, queue, position)
            await asyncio.sleep(_COMMIT_SECONDS)

    def begin_fault(self) -> None:
        """Record a fault: commits that are old enough by now must survive it."""
        limit = asyncio.get_running_loop().time() - OFFSETS_SECONDS
        for queue, commits in self._acknowledged.items():
            safe = [offset for when, offset in commits if when <= limit]
            self._owed[queue] = max(self._owed.get(queue, 0), *safe, 0)
            commits.clear()

    def end_fault(self) -> None:
        """Record the end of a fault, in which a leader that was cut off may have answered."""
        for commits in self._acknowledged.values():
            commits.clear()

    async def check(self, link: BrokerLink) -> None:
        """Compare the leader's offsets with those it must have."""
        for queue, tried in list(self._tried.items()):
            owed = min(self._owed.get(queue, 0), self._open.get(queue, 1 << 62))
            found = await link.committed_offset(GROUP, *queue)
            end = await link.max_offset(*queue)
            self.checked += owed > 0
            if (found or 0) < owed:
                self._complain(queue, f"{owed} was committed long ago, but it is {found}")
            if found is not None and found > end:
                self._complain(queue, f"it is {found}, beyond the end {end} of the queue")
            if found is not None and found not in tried:
                self._complain(queue, f"it is {found}, which nobody committed")

    async def _commit(self, link: BrokerLink, queue: LoadQueue, position: int) -> None:
        self._tried.setdefault(queue, set()).add(position)
        try:
            await link.commit_offset(GROUP, *queue, position)
        except BaseException:
            self._open[queue] = min(self._open.get(queue, position), position)
            raise
        self._acknowledged.setdefault(queue, []).append(
            (asyncio.get_running_loop().time(), position)
        )

    def _complain(self, queue: LoadQueue, text: str) -> None:
        topic, queue_id = queue
        self._ledger.violations.append(f"committed offset of {topic}/{queue_id}: {text}")
