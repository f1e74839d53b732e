"""Tables for slaves: a request is held until a table changes, and answered with the change.

RocketMQ's slaves fetch whole tables every few seconds. Ours ask with FOLLOW_TABLES for what differs
from the versions that they have, and are answered as soon as something does. Changes are noticed by
the tables' revisions, which are looked at several times a second while slaves ask. A table that
changes all the time is sent at intervals that grow with its size. Of the offsets, only changed rows
are sent.

A version is ``epoch.revision``. The epoch is new in every term, because revisions count from the
start of the process; a slave that has a version of another epoch gets the whole table. ``.p`` at
the end means that the slave has only the first part of a table that does not fit into one answer.

The answer carries the end of the log. The tables refer to no message after it, so a slave that has
the log up to there may trust them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.followed_tables import (
    NOT_NOW,
    TableText,
    decode_known,
    encode_tables,
)
from rocketpost.codec.bodies.group import encode_group_table
from rocketpost.codec.bodies.topic import encode_topic_table
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.codec.headers.followed_tables import FollowTables, FollowTablesResponse
from rocketpost.model.ids import Position
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.replies import BODY_BYTES_MAX
from rocketpost.server.replication.tables_serving import Timer
from rocketpost.server.routes.access import GET, of_cluster, strict
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

TOPICS: Final = "topics"
GROUPS: Final = "groups"
AUTO_TOPICS: Final = "autoTopics"
AUTO_GROUPS: Final = "autoGroups"
REQUEST_MODES: Final = "requestModes"
NAMED_FILTERS: Final = "namedFilters"
DELETIONS: Final = "deletions"
ORDER_INFO: Final = "orderInfo"
OFFSETS: Final = "offsets"
DELAYS: Final = "delays"
TIMER: Final = "timer"
ACCESS: Final = "access"

HOLD_SECONDS_MAX: Final = 30.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size of an answer; a larger table is sent alone, or in parts."""
_TABLE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * 1024
_LOOK_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 0.5
_BYTES_PER_SECOND: Final = 2 * 1024 * 1024
"""Rate at which a table that changes all the time is sent."""
_IDLE_SECONDS: Final = 60.0
_PART: Final = ".p"


class TimerText(msgspec.Struct):
    """Progress of the timer, in the forms of GET_TIMER_CHECK_POINT and GET_TIMER_METRICS."""

    check_point: list[int]
    metrics: msgspec.Raw
    left_before: tuple[int, int]
    """Offset of the timer topic and time: messages before both have left the wheel."""


class TableSource(NamedTuple):
    """A table that slaves follow."""

    name: str
    revision: Callable[[], int]
    text: Callable[[], bytes]
    interval_s: float = _LOOK_SECONDS
    """Shortest time between two versions that are sent."""


class _Published:
    """The version of a table that slaves get, and its text once one has asked for it."""

    __slots__ = ("next_at", "revision", "text")

    def __init__(self) -> None:
        self.revision = -1
        self.text: bytes | None = None
        self.next_at = 0.0


class TablesFeed(Feature):
    """Serves the tables of a leader to its slaves. Owned by the loop.

    Args:
        context: The state of the broker.
        timer: The timer; None if timed messages are switched off.
    """

    def __init__(self, context: BrokerContext, *, timer: Timer | None) -> None:
        self._store = context.store
        self._offsets = context.tables.offsets
        self._epoch = secrets.token_hex(4)
        self._sources = [*table_sources(context, timer), access_source(context)]
        self._published = {source.name: _Published() for source in self._sources}
        self._news = asyncio.Event()
        self._held = 0
        self._asked_at = -_IDLE_SECONDS
        self._asked = asyncio.Event()
        self._is_closed = False
        self._left_out: set[str] = set()
        self._gate = context.access.gate

    @property
    def held(self) -> int:
        """Number of slaves that wait for a change."""
        return self._held

    def routes(self) -> Sequence[Route]:
        """Return the route of slaves that follow the tables."""
        return [
            waiting(
                RequestCode.FOLLOW_TABLES,
                FollowTables,
                strict(of_cluster(GET)),
                self.follow,
                PoolKind.SLAVES,
            )
        ]

    async def open(self) -> None:
        """Let the offsets be those of a master: commits are no longer meant for another broker."""
        self._offsets.end_marking()

    async def run(self) -> None:
        """Look for changes while slaves ask."""
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._asked_at > _IDLE_SECONDS and not self._held:
                self._asked.clear()
                await self._asked.wait()
            self._publish(loop.time())
            await asyncio.sleep(_LOOK_SECONDS)

    def connection_lost(self, connection: Connection) -> None:
        """End the request of a lost slave."""
        self._wake()

    def close(self) -> None:
        """Answer the slaves that wait."""
        self._is_closed = True
        self._wake()

    async def follow(self, connection: Connection, command: Command, header: FollowTables) -> Reply:
        """Answer with the tables that differ from a slave's, once there are any."""
        loop = asyncio.get_running_loop()
        known = decode_known(header.known)
        sees_secrets = self._sees_secrets(command)
        if not sees_secrets:
            known[ACCESS] = NOT_NOW
        is_withheld = self._gate is not None and not sees_secrets
        self._asked_at = loop.time()
        self._asked.set()
        end_at = loop.time() + min(max(header.hold_millis / 1000, 0), HOLD_SECONDS_MAX)
        self._publish(loop.time())
        self._held += 1
        try:
            while not self._is_closed and connection.is_open:
                if sees_secrets and not self._sees_secrets(command):
                    break  # its user has lost the right meanwhile
                tables = self._changed(known)
                if tables or loop.time() >= end_at:
                    return self._answer(tables, is_withheld=is_withheld)
                news = self._news
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end_at):
                        await news.wait()
        finally:
            self._held -= 1
        raise ServiceNotAvailable("this broker is changing its role or stopping; try again")

    def runtime_values(self) -> dict[str, str]:
        """Return the number of slaves that follow the tables."""
        return {"tableFollowers": str(self._held)}

    def _sees_secrets(self, command: Command) -> bool:
        """Tell whether a slave may have the users: their secrets are for super users only."""
        if self._gate is None:
            return False
        user = self._gate.user_of(command)
        return user is not None and user.is_super and user.is_enabled

    def _answer(self, tables: Sequence[TableText], *, is_withheld: bool) -> Reply:
        store = self._store
        position = max(store.end_position, store.written_position, store.confirmed_position)
        header = FollowTablesResponse(position=Position(position), access_withheld=is_withheld)
        fields = to_fields(header)
        return Reply(body=encode_tables(tables), fields=fields)

    def _publish(self, now: float) -> None:
        """Take the current version of each table that may be sent again."""
        is_changed = False
        for source in self._sources:
            published = self._published[source.name]
            if now >= published.next_at and source.revision() != published.revision:
                size = 0 if published.text is None else len(published.text)
                published.next_at = now + source.interval_s + size / _BYTES_PER_SECOND
                published.revision, published.text = source.revision(), None
                is_changed = True
        if is_changed:
            self._wake()

    def _changed(self, known: dict[str, str]) -> list[TableText]:
        tables: list[TableText] = []
        room = ANSWER_BYTES_MAX
        for source in self._sources:
            version = known.get(source.name, "")
            published = self._published[source.name]
            if version in (NOT_NOW, self._version(published.revision)):
                continue
            if source.name == OFFSETS:
                table = self._offset_changes(version, room)
            else:
                if published.text is None:
                    published.revision, published.text = source.revision(), source.text()
                table = TableText(source.name, self._version(published.revision), published.text)
            if len(table.text) > _TABLE_BYTES_MAX:
                self._leave_out(table)
                continue
            if tables and len(table.text) > room:
                break
            tables.append(table)
            room -= len(table.text)
        return tables

    def _offset_changes(self, version: str, room: int) -> TableText:
        is_partial = version.endswith(_PART)
        epoch, _, revision = version.removesuffix(_PART).partition(".")
        is_ours = epoch == self._epoch and revision.isdecimal()
        changes = self._offsets.changes_since(
            int(revision) if is_ours else 0, bytes_max=max(room, 1), is_partial=is_partial
        )
        published = self._published[OFFSETS]
        if not changes.is_cut:
            published.revision = changes.revision
        part = _PART if changes.is_cut else ""
        return TableText(
            OFFSETS, self._version(changes.revision) + part, changes.text, changes.is_whole
        )

    def _leave_out(self, table: TableText) -> None:
        """Log, once for each table, that it does not fit into an answer."""
        if table.name not in self._left_out:
            self._left_out.add(table.name)
            logger.error(
                "slaves cannot follow a table: name=%s bytes=%s reason=it is too large",
                table.name, len(table.text),
            )  # fmt: skip

    def _version(self, revision: int) -> str:
        return f"{self._epoch}.{revision}"

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def access_source(context: BrokerContext) -> TableSource:
    """Return the table of users and rules. Its text has secrets, sealed if there is a key."""
    access = context.tables.access
    return TableSource(ACCESS, lambda: access.revision, access.to_json)


def table_sources(context: BrokerContext, timer: Timer | None) -> list[TableSource]:
    """Return the tables in the order in which a slave takes them over."""
    tables, deletions = context.tables, context.store.deletions
    topics, groups, delays = tables.topics, tables.groups, tables.delays
    sources = [
        TableSource(
            TOPICS,
            lambda: topics.revision,
            lambda: encode_topic_table(topics.body(), mappings=False),
        ),
        TableSource(GROUPS, lambda: groups.revision, lambda: encode_group_table(groups.body())),
        TableSource(AUTO_TOPICS, lambda: topics.auto.revision, topics.auto.to_json),
        TableSource(AUTO_GROUPS, lambda: groups.auto.revision, groups.auto.to_json),
        TableSource(REQUEST_MODES, lambda: tables.modes.revision, tables.modes.body),
        TableSource(NAMED_FILTERS, lambda: tables.named.revision, tables.named.to_json),
        TableSource(
            DELETIONS,
            lambda: deletions.count,
            lambda: msgspec.json.encode(deletions.snapshot()),
        ),
        TableSource(
            ORDER_INFO, lambda: tables.batches.revision, tables.batches.to_json, _PROGRESS_SECONDS
        ),
        TableSource(OFFSETS, lambda: tables.offsets.revision, bytes, _PROGRESS_SECONDS),
        TableSource(DELAYS, lambda: delays.revision, delays.to_json, _PROGRESS_SECONDS),
    ]
    if timer is not None:
        sources.append(_timer_source(timer))
    return sources


def _timer_source(timer: Timer) -> TableSource:
    def text() -> bytes:
        metrics = msgspec.Raw(msgspec.json.encode(timer.timer_metrics()))
        text = TimerText(list(timer.check_point()), metrics, timer.left_before())
        return msgspec.json.encode(text)

    def revision() -> int:
        return timer.check_point().counter

    return TableSource(TIMER, revision, text, _PROGRESS_SECONDS)
