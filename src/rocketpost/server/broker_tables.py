"""The broker's tables under ``config/``, loaded before anything is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from rocketpost.broker.auto_created import AutoCreated
from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pop.batch import Batches
from rocketpost.broker.topic import TopicTable
from rocketpost.model.clock import Clock
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import topic_rules
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.tables import TableFile

_WITHOUT: Final = {
    "topics.json": "topics are known by their queues and waiting messages; their permissions, "
    "order and attributes are lost",
    "delayOffset.json": "what was delivered is looked up in the log",
    "consumerFilter.json": "groups bring their filters with their next heartbeats",
    "autoCreatedTopics.json": "topics that sends created so far stay, used or not",
    "autoCreatedGroups.json": "groups that consumers created so far stay, used or not",
}
"""Consequence of losing each table that a broker can start without."""


class Identity(NamedTuple):
    """Identity of a broker, and the address at which clients reach it."""

    cluster: str
    name: str
    ip: str
    port: int

    @property
    def address(self) -> str:
        """Address at which clients reach it."""
        return f"{self.ip}:{self.port}"


class Tables(NamedTuple):
    """The tables under ``config/`` and their files."""

    topics: TopicTable
    topics_file: TableFile[TopicTable]
    groups: GroupTable
    groups_file: TableFile[GroupTable]
    offsets: OffsetTable
    offsets_file: TableFile[OffsetTable]
    delays: DelayProgress
    delays_file: TableFile[DelayProgress]
    modes: RequestModes
    modes_file: TableFile[RequestModes]
    batches: Batches
    batches_file: TableFile[Batches]
    filters: FilterTable
    filters_file: TableFile[FilterTable]
    named: NamedFilters
    named_file: TableFile[NamedFilters]
    auto_topics_file: TableFile[AutoCreated]
    auto_groups_file: TableFile[AutoCreated]
    is_bare: bool
    """Whether there was no trace of tables: at the first start, or if all of them are lost."""


def load_tables_blocking(
    layout: Layout, *, identity: Identity, config: BrokerConfig, clock: Clock, timed: bool
) -> Tables:
    """Load topics, groups and offsets.

    ``timed`` is whether the broker has timed messages.

    Raises:
        StoreError: A table and its backup are lost, and the broker must not start without it.
    """
    topics_file = _table_file(
        layout,
        "topics.json",
        lambda: TopicTable(
            clock=clock,
            cluster_name=identity.cluster,
            broker_name=identity.name,
            rules=topic_rules(config),
        ),
    )
    groups_file = _table_file(
        layout,
        "subscriptionGroup.json",
        lambda: GroupTable(clock=clock, auto_create=config.auto_create_group, timed=timed),
    )
    offsets_file = _table_file(layout, "consumerOffset.json", lambda: OffsetTable(clock=clock))
    delays_file = _table_file(layout, "delayOffset.json", lambda: DelayProgress(clock=clock))
    modes_file = _table_file(layout, "messageRequestMode.json", RequestModes)
    batches_file = _table_file(layout, "consumerOrderInfo.json", Batches)
    filters_file = _table_file(layout, "consumerFilter.json", lambda: FilterTable(clock=clock))
    named_file = _table_file(layout, "namedFilters.json", lambda: NamedFilters(clock=clock))
    auto_topics_file = _table_file(
        layout, "autoCreatedTopics.json", lambda: AutoCreated("topic", clock=clock)
    )
    auto_groups_file = _table_file(
        layout, "autoCreatedGroups.json", lambda: AutoCreated("group", clock=clock)
    )
    is_bare = not topics_file.was_saved and not groups_file.was_saved
    topics, groups = topics_file.load_blocking(), groups_file.load_blocking()
    topics.auto = auto_topics_file.load_blocking()
    groups.auto = auto_groups_file.load_blocking()
    return Tables(
        topics,
        topics_file,
        groups,
        groups_file,
        offsets_file.load_blocking(),
        offsets_file,
        delays_file.load_blocking(),
        delays_file,
        modes_file.load_blocking(),
        modes_file,
        batches_file.load_blocking(),
        batches_file,
        filters_file.load_blocking(),
        filters_file,
        named_file.load_blocking(),
        named_file,
        auto_topics_file,
        auto_groups_file,
        is_bare,
    )


def table_repairs(tables: Tables) -> list[str]:
    """Return what was wrong with the tables at the start, and what was done about it."""
    return [file.repair for file in tables if isinstance(file, TableFile) and file.repair]


class _Loadable(Protocol):
    def load(self, data: bytes) -> None:
        """Take over what a file says."""
        ...  # pragma: no cover


L = TypeVar("L", bound=_Loadable)


def _table_file(layout: Layout, name: str, make: Callable[[], L]) -> TableFile[L]:
    def decode(data: bytes) -> L:
        table = make()
        table.load(data)
        return table

    return TableFile(
        f"{layout.config}/{name}",
        files=RealFiles(),
        decode=decode,
        empty=make,
        is_guarded=True,
        without=_WITHOUT.get(name),
    )
