"""Comparison of a group's members with the ledger and with each other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from chaos.group.load import QUEUES, GroupLoad
from chaos.group.members import Member, Members, MemberStatus
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.codes import RequestCode
from rocketpost.errors import ClientError
from rocketpost.testing.ledger import Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LoadQueue

_LEADER_SECONDS: Final = 60.0
_WHOLE_SECONDS: Final = 600.0
_SYNC_SECONDS: Final = 90.0
_EQUAL_SECONDS: Final = 15.0
_AGAIN_SECONDS: Final = 0.05
_TABLES: Final = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)


class GroupChecks:
    """Compares. Owned by the loop.

    Args:
        members: The group.
        ledger: What was promised.
        load: The load, of which the committed offsets are compared.
    """

    def __init__(self, members: Members, ledger: Ledger, load: GroupLoad) -> None:
        self._members = members
        self._ledger = ledger
        self._load = load
        self._checked: dict[LoadQueue, int] = {}
        self._compared = 0
        self.log_bytes = 0
        """Number of bytes of the log that were compared between all members."""

    async def check_leader(self, *, whole: bool = False) -> None:
        """Read what is new at the leader, or everything.

        Raises:
            PromiseBroken: It lacks or shows something wrong.
            TimeoutError: No member leads.
        """
        async with asyncio.timeout(_WHOLE_SECONDS if whole else _LEADER_SECONDS):
            while not await self._check_leader(whole=whole):
                await asyncio.sleep(_AGAIN_SECONDS)
        self._ledger.verify()

    async def _check_leader(self, *, whole: bool) -> bool:
        """Return whether the same member led from the beginning to the end of the check."""
        leader = await self._members.leader()
        if leader is None:
            return False
        owed = {queue: self._ledger.expected_end(*queue) for queue in QUEUES}
        try:
            before = await leader.status()
            async with leader.link() as link:
                ends = {queue: await link.max_offset(*queue) for queue in QUEUES}
                after = await leader.status()
                if not before.is_leading or (before.term, True) != (after.term, after.is_leading):
                    return False
                for queue, end in ends.items():
                    if end < owed[queue]:
                        self._complain(
                            f"{queue} ends at {end} at {leader.node} in term {after.term}, but "
                            f"{owed[queue]} is owed"
                        )
                    await self._check_queue(link, queue, end, whole=whole)
                await self._load.commits.check(link)
        except ClientError:
            return False
        return True

    async def _check_queue(
        self, link: BrokerLink, queue: LoadQueue, end: int, *, whole: bool
    ) -> None:
        begin = 0 if whole else self._checked.get(queue, 0)
        records = await link.read(*queue, begin, end)
        records = [record for record in records if record.queue_offset < end]
        if len(records) != end - begin:
            self._complain(f"{queue}: {len(records)} messages can be read in [{begin}, {end})")
        if whole:
            self._ledger.check_queue(*queue, records, first=0)
        else:
            for record in records:
                self._ledger.see(record)
        self._checked[queue] = end

    async def until_in_sync(self) -> list[MemberStatus]:
        """Wait until all members run, follow one leader, have its log, and are sound.

        Raises:
            TimeoutError: Some do not get there; the text says which.
        """
        statuses: list[MemberStatus] = []
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                while True:
                    statuses = await self._members.statuses()
                    if len(statuses) == len(self._members.all) and _is_in_sync(statuses):
                        return statuses
                    await asyncio.sleep(_AGAIN_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"the members are not in sync: {statuses}") from None

    async def compare_members(self) -> None:
        """Check that all members have the same log up to what is committed, and the same tables.

        There must be no load.

        Raises:
            PromiseBroken: They differ.
        """
        statuses = await self.until_in_sync()
        end = min(status.committed for status in statuses)
        begin = max(self._compared, *(status.first for status in statuses))
        logs = await self._logs(begin, end)
        for member, log in zip(self._members.all, logs, strict=True):
            if len(log) != end - begin:
                self._complain(f"{member.node} has {len(log)} of {end - begin} bytes from {begin}")
            elif log != logs[0]:
                at = begin + _first_difference(log, logs[0])
                self._complain(f"split history: {member.node} differs from byte {at} on")
        self.log_bytes += end - begin
        self._compared = end
        await self._compare_tables()
        self._ledger.verify()

    async def until_equal_logs(self) -> None:
        """Wait until all members have the same log up to what is committed now.

        Raises:
            TimeoutError: Some differ for too long; the text says where.
        """
        end = max(status.committed for status in await self._members.statuses())
        logs: list[bytes] = []
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                while len(set(logs)) != 1:
                    await asyncio.sleep(_AGAIN_SECONDS)
                    logs = await self._logs(0, end)
        except TimeoutError:
            places = [_first_difference(log, logs[0]) for log in logs]
            raise TimeoutError(f"the logs differ up to {end}: from {places} on") from None

    async def _logs(self, begin: int, end: int) -> list[bytes]:
        reads = [
            asyncio.to_thread(member.log_bytes_blocking, begin, end) for member in self._members.all
        ]
        return await asyncio.gather(*reads)

    async def compare_whole_logs(self) -> None:
        """Check the logs from their beginning, as damage may have changed old bytes."""
        self._compared = 0
        await self.compare_members()

    async def _compare_tables(self) -> None:
        tables: list[list[object]] = []
        try:
            async with asyncio.timeout(_EQUAL_SECONDS):
                while True:
                    with contextlib.suppress(ClientError):
                        tables = [await _tables_of(member) for member in self._members.all]
                        if all(each == tables[0] for each in tables):
                            return
                    await asyncio.sleep(_AGAIN_SECONDS)
        except TimeoutError:
            different = [
                code.name
                for at, code in enumerate(_TABLES)
                if any(each[at] != tables[0][at] for each in tables)
            ]
            self._complain(f"the tables of the members differ: {', '.join(different)}")

    def _complain(self, text: str) -> None:
        self._ledger.violations.append(text)


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the position of the first byte that differs, or the length of the shorter one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


async def _tables_of(member: Member) -> list[object]:
    topics, groups, offsets = [(await member.ask(code)).body for code in _TABLES]
    return [bytes(topics), bytes(groups), decode_offset_table(bytes(offsets))]


def _is_in_sync(statuses: list[MemberStatus]) -> bool:
    leaders = [status for status in statuses if status.is_leading]
    if len(leaders) != 1:
        return False
    leader = leaders[0]
    return all(
        status.leader == leader.node
        and status.term == leader.term
        and status.committed == leader.committed == leader.end == status.end
        and not status.is_suspect
        and not status.failure
        for status in statuses
    )
