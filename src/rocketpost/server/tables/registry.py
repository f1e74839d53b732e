"""The registry of tables: every JSON file of a broker under ``config/``, declared once.

A declaration states how the table is created and loaded, when it is saved, its owner, and the
effect of losing it. A start opens every table that is declared here. While the broker runs,
``server.tables.persistence`` saves them, and for the last time when it stops.

Not tables, so not here: ``producerState.json``, a snapshot up to a position of the log
(``features.dedup``), ``timercheck`` (``store.timer``) and ``droppedTopics.json`` (``store.queue``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rocketpost.access.table import AccessTable, Cipher
from rocketpost.broker.auto_created import AutoCreated
from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pop.batch import Batches
from rocketpost.broker.timer.master_timer import MasterTimer
from rocketpost.broker.topic import TopicTable
from rocketpost.model.clock import Clock
from rocketpost.server.access.table_file import TABLE_FILE
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import topic_rules
from rocketpost.server.settings.live_config import OVERRIDES_FILE, LiveConfig
from rocketpost.server.tables.persistence import AfterFlush, File, Owner, Persistence, Saved, Table
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import Layout
from rocketpost.store.tables import TableFile


class When(Enum):
    """Time at which a changed table is saved."""

    AT_ONCE = "soon after each change"
    IN_ROUNDS = "every interval"
    IN_ROUNDS_AFTER_FLUSH = "every interval, once all messages that it refers to are durable"


class TableContext(NamedTuple):
    """Facts about the broker for the construction of its tables."""

    cluster: str
    broker: str
    config: BrokerConfig
    clock: Clock
    timed: bool
    """Whether the broker has timed messages."""
    in_log: bool = False
    """Whether the log has the tables, too: the broker is a member of a group."""
    cipher: Cipher | None = None
    """Seals the secrets of users; None to store them in clear text."""


class StoredTable(Table, Protocol):
    """A table that can be saved and read back."""

    def load(self, data: bytes) -> None:
        """Load the table from the text of its file."""
        ...


T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True, eq=False)
class TableSpec(Generic[T]):
    """The declaration of one table."""

    file: str
    """Name of the file under ``config/``."""
    owner: Owner
    make: Callable[[TableContext], T] | None
    """Creates an empty table; None if the table is opened before the store."""
    when: When = When.AT_ONCE
    interval_ms: Callable[[BrokerConfig], int] = lambda _: 10_000
    """Returns the interval of saves, or of retries for a table that is saved at once."""
    without: str | None = None
    """Consequence of starting without the table if it is lost; None if a start must be refused."""
    is_private: bool = False
    """Whether only the owner of the process may read the file."""


def _offsets_interval(config: BrokerConfig) -> int:
    return config.flush_offsets_ms


TOPICS: Final = TableSpec(
    "topics.json",
    Owner.BROKER,
    lambda context: TopicTable(
        clock=context.clock,
        cluster_name=context.cluster,
        broker_name=context.broker,
        rules=topic_rules(context.config),
    ),
    interval_ms=_offsets_interval,
    without="topics are known by their queues and waiting messages; their permissions, "
    "order and attributes are lost",
)
GROUPS: Final = TableSpec(
    "subscriptionGroup.json",
    Owner.BROKER,
    lambda context: GroupTable(
        clock=context.clock, auto_create=context.config.auto_create_group, timed=context.timed
    ),
    interval_ms=_offsets_interval,
)
AUTO_TOPICS: Final = TableSpec(
    "autoCreatedTopics.json",
    Owner.BROKER,
    lambda context: AutoCreated("topic", clock=context.clock),
    interval_ms=_offsets_interval,
    without="topics that sends created so far stay, used or not",
)
AUTO_GROUPS: Final = TableSpec(
    "autoCreatedGroups.json",
    Owner.BROKER,
    lambda context: AutoCreated("group", clock=context.clock),
    interval_ms=_offsets_interval,
    without="groups that consumers created so far stay, used or not",
)
OVERRIDES: Final[TableSpec[LiveConfig]] = TableSpec(
    OVERRIDES_FILE, Owner.BROKER, None, interval_ms=_offsets_interval
)
OFFSETS: Final = TableSpec(
    "consumerOffset.json",
    Owner.BROKER,
    lambda context: OffsetTable(clock=context.clock),
    When.IN_ROUNDS_AFTER_FLUSH,
    interval_ms=_offsets_interval,
)
DELAYS: Final = TableSpec(
    "delayOffset.json",
    Owner.DELAY,
    lambda context: DelayProgress(clock=context.clock),
    When.IN_ROUNDS,
    interval_ms=lambda config: config.flush_delays_ms,
    without="what was delivered is looked up in the log",
)
MASTER_TIMER: Final = TableSpec(
    "masterTimer.json",
    Owner.DELAY,
    lambda context: MasterTimer(),
    When.IN_ROUNDS,
    interval_ms=lambda config: config.flush_delays_ms,
    without="what the master's timer has delivered is looked up in the log",
)
REQUEST_MODES: Final = TableSpec(
    "messageRequestMode.json", Owner.REQUEST_MODES, lambda context: RequestModes()
)
ORDER_INFO: Final = TableSpec(
    "consumerOrderInfo.json", Owner.ORDER, lambda context: Batches(), When.IN_ROUNDS
)
GROUP_FILTERS: Final = TableSpec(
    "consumerFilter.json",
    Owner.GROUP_FILTERS,
    lambda context: FilterTable(clock=context.clock),
    When.IN_ROUNDS,
    without="groups bring their filters with their next heartbeats",
)
NAMED_FILTERS: Final = TableSpec(
    "namedFilters.json", Owner.NAMED_FILTERS, lambda context: NamedFilters(clock=context.clock)
)
ACCESS: Final = TableSpec(
    TABLE_FILE, Owner.ACCESS, lambda context: AccessTable(context.cipher), is_private=True
)

SPECS: Final[tuple[TableSpec[Any], ...]] = (
    TOPICS, GROUPS, AUTO_TOPICS, AUTO_GROUPS, OVERRIDES, OFFSETS, DELAYS, MASTER_TIMER,
    REQUEST_MODES, ORDER_INFO, GROUP_FILTERS, NAMED_FILTERS, ACCESS,
)  # fmt: skip
"""The tables that a start opens, in the order in which they are saved."""


class OpenTable(NamedTuple):
    """A table with its declaration and its file."""

    spec: TableSpec[Any]
    table: Table
    file: File


class TableRegistry:
    """The open tables of a broker. Owned by the loop, once they are open.

    Args:
        layout: The paths of the files.
        files: The file system.
    """

    def __init__(self, layout: Layout, files: FileSystem) -> None:
        self._layout = layout
        self._files = files
        self._open: dict[TableSpec[Any], OpenTable] = {}
        self.is_bare = False
        """Whether no table was found: at the first start, or if all of them are lost."""
        self.repairs: tuple[str, ...] = ()
        """Problems found when the tables were opened, and their repairs."""

    def open_blocking(self, context: TableContext) -> None:
        """Load every table from its file.

        Raises:
            StoreError: A table and its backup are lost, and the broker must not start without it.
        """
        files = {
            spec: _table_file(self._layout, self._files, spec, spec.make, context)
            for spec in SPECS
            if spec.make is not None
        }
        self.is_bare = not files[TOPICS].was_saved and not files[GROUPS].was_saved
        for spec, file in files.items():
            self.add(spec, file.load_blocking(), file)
        self.repairs = tuple(file.repair for file in files.values() if file.repair)

    def add(self, spec: TableSpec[T], table: T, file: File) -> None:
        """Register an open table, to be saved to ``file``."""
        assert spec in SPECS
        assert spec not in self._open
        self._open[spec] = OpenTable(spec, table, file)

    def __getitem__(self, spec: TableSpec[T]) -> T:
        table: T = self._open[spec].table  # type: ignore[assignment]
        return table

    def __iter__(self) -> Iterator[OpenTable]:
        return (self._open[spec] for spec in SPECS if spec in self._open)

    def persistence(
        self, config: BrokerConfig, *, flush_blocking: Callable[[], None]
    ) -> Persistence:
        """Return the object that saves the open tables.

        Args:
            config: The settings with the intervals.
            flush_blocking: Makes all written messages durable.
        """
        return Persistence([_table_to_save(each, config, flush_blocking) for each in self])


def _table_to_save(
    open_table: OpenTable, config: BrokerConfig, flush_blocking: Callable[[], None]
) -> Saved:
    spec, table, file = open_table
    is_after_flush = spec.when is When.IN_ROUNDS_AFTER_FLUSH
    return Saved(
        table,
        AfterFlush(file, flush_blocking) if is_after_flush else file,
        at_once=spec.when is When.AT_ONCE,
        interval_s=spec.interval_ms(config) / 1000,
        owner=spec.owner,
    )


def _table_file(
    layout: Layout,
    files: FileSystem,
    spec: TableSpec[Any],
    make: Callable[[TableContext], StoredTable],
    context: TableContext,
) -> TableFile[StoredTable]:
    def decode(data: bytes) -> StoredTable:
        table = make(context)
        table.load(data)
        return table

    in_log = spec is not ACCESS  # its log may lack users, and no stranger must be let in by mistake
    return TableFile(
        f"{layout.config}/{spec.file}",
        files=files,
        decode=decode,
        empty=lambda: make(context),
        is_guarded=True,
        without="the log of the group has it" if context.in_log and in_log else spec.without,
        is_private=spec.is_private,
    )
