"""Comparison of old log with the other members, in the background.

A flipped bit in old log is not noticed at a start, and the checksum of a record does not cover all
of it. So every member compares its committed log with that of others, block by block, by digests:
a follower with its leader, a leader with one follower after the other. If two differ, all members
are asked. **Only a majority of the voters decides**: a member whose block differs from what a
majority has gets the bytes from one of them. Without a majority nothing is changed, except records
that fail their own checksum: they are wrong for certain, and any voter has better ones if those
pass. A follower that lacks a record can only get it from the other members, which would otherwise
wait for its digest.

A round compares what was on disk when it began: new log was checked when it was written. The first
round begins with the process, as files may have changed while the process did not run. Damage that
a read, or the scrub of the own disk, has found is compared first, at any time. So are bytes that a
follower has to be sent once more, if they are damaged: it may have refused them. If no majority
could be asked about a block, or none agreed, the block is compared again every few seconds. Rate
and interval are those of the scrub: ``scrubCommitLogBytesPerSecond``,
``scrubCommitLogIntervalHours``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rocketpost.codec.group.questions import Subject
from rocketpost.errors import ReplicationError, StoreError
from rocketpost.kernel.record_scan import BLANK, INVALID, parse_record, scan_records
from rocketpost.raft.node import RaftNode
from rocketpost.raft.quorum import majority
from rocketpost.server.group.life.questions import Questions
from rocketpost.store.config import StoreConfig
from rocketpost.store.integrity.damage import Damage
from rocketpost.store.member.repair import UNREADABLE, OldLog, digest_of
from rocketpost.store.message_store import MessageStore

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 256 * 1024
"""Bytes that are compared at once."""
_PAUSE_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 5.0
"""Time after which a block without a majority is compared again: members may be back."""
_RECORDS_AT_ONCE: Final = 4096
_HOUR_SECONDS: Final = 3600.0


class Block(NamedTuple):
    """A range of the log within one segment."""

    begin: int
    end: int


def choose_right(digests: Mapping[str, bytes], voters: Iterable[str]) -> bytes | None:
    """Return the digest that a majority of the voters has; None if there is no such digest."""
    voters = frozenset(voters)
    counts = Counter(digest for name, digest in digests.items() if name in voters)
    if not counts:
        return None
    digest, count = counts.most_common(1)[0]
    return digest if count >= majority(voters) else None


def find_damaged(data: bytes | memoryview, position: int) -> Block | None:
    """Return the first record that fails its checks, of whole records from ``position`` on."""
    at, size = 0, len(data)
    while at < size:
        entries, at, verdict = scan_records(data, at, position + at, count_max=_RECORDS_AT_ONCE)
        if verdict == BLANK:
            return None
        if verdict == INVALID:
            stated = parse_record(data, at, position + at, False)
            end = at + stated[1] if stated is not None else size
            return Block(position + at, position + min(end, size))
        if not entries:
            break
    return None


class LogScrub:
    """Compares the log of this member with others. Owned by the loop.

    Args:
        node: The state machine.
        store: The messages.
        old_log: Reads and repairs the log.
        questions: Asks other members.
        is_up: Tells whether a member can be asked.
        config: Returns the settings of the store.
    """

    def __init__(
        self,
        node: RaftNode,
        store: MessageStore,
        old_log: OldLog,
        *,
        questions: Questions,
        is_up: Callable[[str], bool],
        config: Callable[[], StoreConfig],
    ) -> None:
        self._node = node
        self._store = store
        self._old_log = old_log
        self._questions = questions
        self._is_up = is_up
        self._config = config
        self._position = self._round_end = 0
        self._turn = 0
        self._compared_bytes = 0
        self.repaired_count = 0
        """Number of blocks that were replaced by those of other members."""
        self._undecided: dict[Block, float] = {}  # when each may be compared again
        self._left: dict[Damage, float] = {}  # the same
        self._shipped: dict[str, int] = {}

    # For other members.

    async def answer_digest(self, peer: str, begin: int, end: int) -> bytes:
        """Return the digest of committed bytes.

        Raises:
            ReplicationError: This member does not have all of them.
        """
        self._check(begin, end)
        return await asyncio.to_thread(self._old_log.digest_blocking, begin, end)

    async def answer_log(self, peer: str, begin: int, end: int) -> bytes:
        """Return committed bytes.

        Raises:
            ReplicationError: This member does not have all of them.
            OSError: The disk cannot read them.
        """
        self._check(begin, end)
        return await asyncio.to_thread(self._old_log.read_blocking, begin, end)

    def _check(self, begin: int, end: int) -> None:
        first, commit = self._store.first_position, min(self._node.commit, self._written)
        if not first <= begin < end <= commit or end - begin > BLOCK_BYTES:
            raise ReplicationError(f"it has {first} to {commit}, not {begin} to {end}")
        if self._node.is_suspect:
            raise ReplicationError("its log is being repaired")

    @property
    def _written(self) -> int:
        return int(self._store.durable_position)

    def note_shipped(
        self, peer: str, start: int, data: memoryview, now_ms: Callable[[], int]
    ) -> None:
        """Check committed bytes that are sent to a peer again: they may be damaged here."""
        is_again, self._shipped[peer] = self._shipped.get(peer) == start, start
        damaged = find_damaged(data, start) if is_again else None
        if damaged is not None and damaged.end <= self._node.commit:
            reason = f"{peer} cannot append it"
            damage = Damage(*damaged, reason, found_ms=now_ms(), found_by="replication")
            self._store.damage.report_from_thread(damage)

    # The work.

    async def run(self) -> None:
        """Compare until cancelled."""
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        self.begin_round()
        while True:
            config = self._config()
            size = 0
            if config.scrub_enabled and self._may_compare:
                try:
                    size = await self._work_on()
                except (ReplicationError, StoreError, OSError) as error:
                    logger.debug("block not compared: reason=%s", error)
            if size:
                await asyncio.sleep(size / config.scrub_bytes_per_second)
                continue
            interval = config.scrub_interval_hours * _HOUR_SECONDS
            if self._position >= self._limit and loop.time() - begun_at >= interval:
                begun_at = loop.time()
                self.begin_round()
            await asyncio.sleep(_PAUSE_SECONDS)

    def begin_round(self) -> None:
        """Compare all blocks that begin before what is flushed now, once they are committed."""
        self._position, self._round_end = 0, self._written + BLOCK_BYTES - 1
        self._left.clear()

    async def _work_on(self) -> int:
        """Compare known damage, or else the next block; returns the number of bytes compared."""
        known = self._store.damage.all()
        damage = next((each for each in known if self._may_mend(each)), None)
        if damage is not None:
            await self._mend(damage)
            return damage.end - damage.begin
        self._position = max(self._position, int(self._store.first_position))
        if self._position >= self._limit:
            return await self._try_undecided()
        block = self._block_at(self._position, self._limit)
        await self.compare(block)
        if self._position == block.begin:
            self._position = block.end
        return block.end - block.begin

    async def _try_undecided(self) -> int:
        """Compare again a block on which no majority agreed."""
        now = asyncio.get_running_loop().time()
        block = next((each for each, again in self._undecided.items() if again <= now), None)
        if block is None:
            return 0
        self._undecided[block] = now + _AGAIN_SECONDS
        if block.begin < self._store.first_position:
            del self._undecided[block]
            return 0
        await self.compare(block)
        return block.end - block.begin

    def _may_mend(self, damage: Damage) -> bool:
        again = self._left.get(damage, 0.0)
        if asyncio.get_running_loop().time() < again:
            return False
        return damage.end <= min(self._node.commit, self._written)

    def _leave(self, damage: Damage) -> None:
        self._left[damage] = asyncio.get_running_loop().time() + _AGAIN_SECONDS

    async def _mend(self, damage: Damage) -> None:
        """Compare a damaged range, and forget the damage once the range is the majority's."""
        self._leave(damage)
        position, repaired, is_decided = damage.begin, self.repaired_count, True
        while position < damage.end:
            block = self._block_at(position, damage.end)
            is_decided &= await self.compare(block)
            position = block.end
        is_decided = is_decided or await self._take_sound(damage)
        if is_decided and self.repaired_count > repaired:  # else all members have these bytes
            del self._left[damage]
            self._store.damage.forget(damage)
            await asyncio.to_thread(self._store.damage.save_blocking)

    async def _take_sound(self, damage: Damage) -> bool:
        """Replace records that fail their checks by a voter's, if those pass.

        Both are committed, at the same position, so no majority has to decide which are right.

        Raises:
            StoreError: The log does not have them any more.
            OSError: They could not be repaired.
        """
        begin, end = damage.begin, damage.end
        own = await asyncio.to_thread(self._old_log.read_blocking, begin, end)
        if find_damaged(own, begin) is None:
            return False
        for name in sorted(self._node.members.voters - {self._node.node}):
            try:
                data = await self._fetch(name, begin, end)
            except ReplicationError as error:
                logger.info("%s has no sound record: reason=%s", name, error)
                continue
            if find_damaged(data, begin) is None:
                await asyncio.to_thread(self._old_log.repair_blocking, begin, data)
                self.repaired_count += 1
                logger.error(
                    "damaged record replaced by a sound one: position=%s bytes=%s from=%s",
                    begin, end - begin, name,
                )  # fmt: skip
                return True
        return False

    async def _fetch(self, name: str, begin: int, end: int) -> bytes:
        parts = [
            await self._questions.ask(name, Subject.LOG, at, min(at + BLOCK_BYTES, end))
            for at in range(begin, end, BLOCK_BYTES)
        ]
        return b"".join(parts)

    def describe(self) -> str:
        """Return the progress as text for people."""
        found = f"{self._compared_bytes} bytes compared, {self.repaired_count} blocks repaired"
        if self._undecided:
            found += f", {len(self._undecided)} blocks differ without a majority"
        return f"{found}, next position {self._position}"

    async def compare(self, block: Block) -> bool:
        """Compare a block with another member, and with all of them if the two differ.

        Returns:
            Whether this member now has the bytes of the majority.

        Raises:
            ReplicationError: No other member could be asked.
            StoreError: The log does not have the block any more.
            OSError: It could not be repaired.
        """
        own = await asyncio.to_thread(self._old_log.digest_blocking, *block)
        peer = self._choose_peer()
        theirs = await self._questions.ask(peer, Subject.DIGEST, *block)
        self._compared_bytes += block.end - block.begin
        if own == theirs != UNREADABLE:
            return True
        digests = await self._ask_all(block, {self._node.node: own, peer: theirs})
        right = choose_right(digests, self._node.members.voters)
        if right is None or right == UNREADABLE:
            self._note_undecided(block, digests)
            return False
        self._undecided.pop(block, None)
        if own != right:
            await self._repair(block, right, digests)
            return True
        logger.warning(
            "old log of other members differs from the majority's: position=%s members=%s; they "
            "repair it themselves", block.begin,
            ", ".join(sorted(name for name, digest in digests.items() if digest != right)),
        )  # fmt: skip
        return True

    def _note_undecided(self, block: Block, digests: Mapping[str, bytes]) -> None:
        is_new = block not in self._undecided
        self._undecided[block] = asyncio.get_running_loop().time() + _AGAIN_SECONDS
        if is_new:
            logger.error(
                "old log differs between members, and no majority agrees: position=%s bytes=%s "
                "digests=%s", block.begin, block.end - block.begin,
                {name: digest.hex() for name, digest in sorted(digests.items())},
            )  # fmt: skip

    async def _ask_all(self, block: Block, digests: dict[str, bytes]) -> dict[str, bytes]:
        for name in sorted(self._node.members.voters - digests.keys()):
            try:
                digests[name] = await self._questions.ask(name, Subject.DIGEST, *block)
            except ReplicationError as error:
                logger.info("old log is not compared with %s: reason=%s", name, error)
        return digests

    async def _repair(self, block: Block, right: bytes, digests: Mapping[str, bytes]) -> None:
        for name in sorted(name for name, digest in digests.items() if digest == right):
            data = await self._questions.ask(name, Subject.LOG, *block)
            if digest_of(data) == right:
                break
        else:
            raise ReplicationError(f"no member has sent the right bytes of {block.begin}")
        await asyncio.to_thread(self._old_log.repair_blocking, block.begin, data)
        self.repaired_count += 1
        logger.error(
            "damaged log repaired from other members: position=%s bytes=%s from=%s",
            block.begin, block.end - block.begin, name,
        )  # fmt: skip

    # The next block.

    @property
    def _may_compare(self) -> bool:
        node = self._node
        return not node.is_suspect and not node.has_failed and node.leader is not None

    @property
    def _limit(self) -> int:
        """End of the bytes that may be compared in this round."""
        limit = min(self._node.commit, self._written, self._round_end)
        return limit - limit % BLOCK_BYTES

    def _block_at(self, position: int, limit: int) -> Block:
        """Return the block that begins at a position: it ends with its segment at the latest."""
        segment_bytes = self._store.config.segment_bytes
        segment_end = position - position % segment_bytes + segment_bytes
        border = position - position % BLOCK_BYTES + BLOCK_BYTES
        return Block(position, min(border, segment_end, limit))

    def _choose_peer(self) -> str:
        node = self._node
        if node.leader is not None and node.leader != node.node and self._is_up(node.leader):
            return node.leader
        others = sorted(peer for peer in node.members.voters - {node.node} if self._is_up(peer))
        if not others:
            raise ReplicationError("no other member can be asked")
        self._turn += 1
        return others[self._turn % len(others)]
