"""Applies a master's tables at a slave, and sends commits made at the slave to the master.

A master of ours is asked with FOLLOW_TABLES, and answers as soon as something changes. A master
that does not know that request is polled every ten seconds.

Topics, groups, request modes, filters, users and rules are taken over at once. Progress (offsets,
delay offsets, timer, deleted topics, batches popped in order) waits until the own log has, on disk,
everything that it refers to. Otherwise a slave that is behind and becomes the master would skip
messages: a group would start after the end of a queue, and a delayed message would count as
delivered although its copy is lost.

Commits of consumers at the slave are sent to the master before its tables are taken over, and never
move a group back (``broker.group.offsets``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rocketpost.broker.group.offsets import NO_OFFSET, MarkedCommit
from rocketpost.codec.bodies.followed_tables import NOT_NOW, TableText, decode_tables, encode_known
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.followed_tables import FollowTables, FollowTablesResponse
from rocketpost.codec.headers.offset import OffsetResponse, QueryOffset, UpdateOffset
from rocketpost.errors import RocketpostError
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.replication import tables_feed as feed
from rocketpost.server.replication.tables_apply import PROGRESS, TablesReplica
from rocketpost.server.replication.tables_poll import poll_tables
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 3.0
HOLD_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 3.0
_BATCHES_MAX: Final = 2
"""Answers whose progress waits for the log; meanwhile no more progress is asked for."""
_LOOK_SECONDS: Final = 0.05
_COMMITS_AT_ONCE: Final = 64
_OBSOLETE: Final = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.NO_PERMISSION,
)
"""Answers to a commit that the master will never take: its topic, group or message is gone."""
_WITHHELD: Final = (
    "the master sends no users and rules, because the user of innerClientAuthenticationCredentials "
    "is no super user there: make it one (mqadmin updateUser -t Super)"
)


class _Batch(NamedTuple):
    """Tables that wait until the log has reached a position."""

    position: int
    tables: Sequence[TableText]


class TablesFollower(Feature):
    """Follows the tables of the master. Owned by the loop.

    Args:
        context: The state of the broker.
        master: Returns the address at which the master serves requests; empty if it is unknown or
            must not be followed.
    """

    def __init__(self, context: BrokerContext, *, master: Callable[[], str]) -> None:
        self._master = master
        self._store = context.store
        self._tables = context.tables
        self._replica = TablesReplica(context)
        self._connector = context.peers.connector()
        self._connection: Connection | None = None
        self._known: dict[str, str] = {}
        self._own_revisions: dict[str, int] = {}
        self._is_polled = False
        self._batches: deque[_Batch] = deque()
        self._staged = asyncio.Event()
        self._woken = asyncio.Event()
        self._is_access_withheld = False
        self._problem = ""

    async def open(self) -> None:
        """Mark commits from now on, so that the master gets them."""
        self._tables.offsets.begin_marking()

    def wake(self) -> None:
        """Look for the master at once: its log may be followed now."""
        self._woken.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="tables of the master")
            group.create_task(self._apply_batches(), name="progress of the master")

    def runtime_values(self) -> dict[str, str]:
        """Return the state of the tables."""
        return {
            "tablesFollow": self._master(),
            "tablesFollowProblem": self._problem,
            "tablesWaitForLog": str(len(self._batches)),
            "commitsForMaster": str(len(self._tables.offsets.marks)),
        }

    async def save(self) -> None:
        """Close the connection to the master."""
        await self._connector.close()

    # -- following

    async def _follow(self) -> None:
        while True:
            seconds = RETRY_SECONDS
            try:
                if address := self._master():
                    seconds = await self._follow_once(address)
                self._note_problem(_WITHHELD if self._is_access_withheld else "")
            except RocketpostError as error:
                self._note_problem(str(error))
            except Exception:
                logger.exception("tables not taken over")
                self._known.clear()
            if seconds:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()
            self._woken.clear()

    async def _follow_once(self, address: str) -> float:
        """Apply the master's newest tables, or wait for a change; return the time to pause."""
        connection = await self._connector.connect(address)
        if connection is not self._connection:
            self._begin(connection)
        await self._return_commits(connection)
        if not self._is_polled:
            await self._ask(connection)
        if not self._is_polled:
            return 0.0
        polled = await poll_tables(connection)
        await self._take(polled.tables, polled.position)
        return POLL_SECONDS

    def _begin(self, connection: Connection) -> None:
        """Forget tables that an earlier master sent: it may have lost the end of its log since."""
        self._connection = connection
        self._known.clear()
        self._batches.clear()
        self._is_polled = False
        self._is_access_withheld = False

    async def _ask(self, connection: Connection) -> None:
        for name, revision in self._own_revisions.items():
            if revision != self._revision(name):  # changed here, by a client or a name server
                self._known.pop(name, None)
        known = dict(self._known)
        if len(self._batches) >= _BATCHES_MAX:
            known |= dict.fromkeys(PROGRESS, NOT_NOW)
        header = FollowTables(known=encode_known(known), hold_millis=int(HOLD_SECONDS * 1000))
        answer = await connection.request(
            RequestCode.FOLLOW_TABLES,
            fields=to_fields(header),
            timeout=HOLD_SECONDS + _ANSWER_SECONDS,
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            logger.info("master is polled: address=%s", connection.peer_text)
            self._is_polled = True
            return
        answer.raise_for_code()
        tables, state = decode_tables(answer.body), answer.read(FollowTablesResponse)
        self._is_access_withheld = state.access_withheld
        await self._take(tables, state.position)
        self._known |= {table.name: table.version for table in tables}

    async def _take(self, tables: Sequence[TableText], position: int) -> None:
        """Apply tables at once, or let them wait for the log."""
        progress = [table for table in tables if table.name in PROGRESS]
        settings = [table for table in tables if table.name not in PROGRESS]
        for table in settings:
            await self._replica.apply(table)
            if table.name in (feed.TOPICS, feed.GROUPS):
                self._own_revisions[table.name] = self._revision(table.name)
        if progress and len(self._batches) < _BATCHES_MAX:
            self._batches.append(_Batch(position, progress))
            self._staged.set()
        if settings:
            await self._replica.save()

    async def _apply_batches(self) -> None:
        while True:
            if not self._batches:
                self._staged.clear()
                await self._staged.wait()
                continue
            batch = self._batches[0]
            if not self._has_log(batch.position):
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            self._batches.popleft()
            for table in batch.tables:
                try:
                    await self._replica.apply(table)
                except RocketpostError as error:
                    self._known.pop(table.name, None)
                    logger.error("table not taken over: name=%s reason=%s", table.name, error)
                except Exception:
                    self._known.pop(table.name, None)
                    logger.exception("table not taken over: name=%s", table.name)

    def _has_log(self, position: int) -> bool:
        """Tell whether the own log has everything before a position, on disk and visible."""
        store = self._store
        if store.durable_position >= position:
            return store.confirmed_position >= position
        if store.written_position >= position:
            store.request_flush()
        return False

    def _revision(self, name: str) -> int:
        tables = self._tables
        return tables.topics.revision if name == feed.TOPICS else tables.groups.revision

    # -- commits that flow back

    async def _return_commits(self, connection: Connection) -> None:
        """Send the commits that consumers made here to the master, unless it has them."""
        marks = self._tables.offsets.marks
        for at in range(0, len(marks), _COMMITS_AT_ONCE):
            some = marks[at : at + _COMMITS_AT_ONCE]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._try_commit(connection, mark)) for mark in some]
            for task in tasks:
                if (error := task.result()) is not None:
                    raise error

    async def _try_commit(
        self, connection: Connection, mark: MarkedCommit
    ) -> RocketpostError | None:
        try:
            await self._return_commit(connection, mark)
        except RocketpostError as error:
            return error
        return None

    async def _return_commit(self, connection: Connection, mark: MarkedCommit) -> None:
        query = QueryOffset(
            consumer_group=mark.group,
            topic=mark.topic,
            queue_id=mark.queue_id,
            set_zero_if_not_found=False,
        )
        answer = await connection.request(
            RequestCode.QUERY_CONSUMER_OFFSET, fields=to_fields(query), timeout=_ANSWER_SECONDS
        )
        theirs = NO_OFFSET
        if answer.code == ResponseCode.SUCCESS:
            theirs = answer.read(OffsetResponse).offset
        elif answer.code != ResponseCode.QUERY_NOT_FOUND and answer.code not in _OBSOLETE:
            answer.raise_for_code()
        if theirs < mark.offset:
            await self._commit_at_master(connection, mark)
        self._tables.offsets.unmark(mark)

    async def _commit_at_master(self, connection: Connection, mark: MarkedCommit) -> None:
        update = UpdateOffset(
            consumer_group=mark.group,
            topic=mark.topic,
            queue_id=mark.queue_id,
            commit_offset=mark.offset,
            only_forward=True,
        )
        answer = await connection.request(
            RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(update), timeout=_ANSWER_SECONDS
        )
        if answer.code in _OBSOLETE:
            logger.warning(
                "commit of a consumer is dropped: topic=%s group=%s queue=%s offset=%s reason=%s",
                *mark, answer.remark,
            )  # fmt: skip
            return
        answer.raise_for_code()
        logger.info("commit sent to the master: topic=%s group=%s queue=%s offset=%s", *mark)

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            logger.warning("tables are not followed: reason=%s", problem)
        elif self._problem and not problem:
            logger.info("tables are followed again")
        self._problem = problem
