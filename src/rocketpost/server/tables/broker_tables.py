"""The broker's tables under ``config/``, loaded before anything is served."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.access.table import AccessTable
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
from rocketpost.server.access.cipher import load_cipher_blocking
from rocketpost.server.access.migration import migrate_blocking
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.tables import registry
from rocketpost.server.tables.registry import TableContext, TableRegistry
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import Layout


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
    """The tables under ``config/``, and the registry that knows their files."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    delays: DelayProgress
    master_timer: MasterTimer
    modes: RequestModes
    batches: Batches
    filters: FilterTable
    named: NamedFilters
    access: AccessTable
    registry: TableRegistry

    def exist(self, topic: str, group: str) -> bool:
        """Tell whether a topic and a group both exist."""
        return self.topics.find(topic) is not None and self.groups.find(group) is not None


def load_tables_blocking(
    layout: Layout,
    files: FileSystem,
    *,
    identity: Identity,
    config: BrokerConfig,
    clock: Clock,
    timed: bool,
    in_log: bool = False,
) -> Tables:
    """Load every table that the registry declares.

    ``timed`` is whether the broker has timed messages, ``in_log`` whether the log has the tables.

    Raises:
        StoreError: A table and its backup are lost, and the broker must not start without it.
        ConfigError: The key that seals the secrets of users cannot be read.
    """
    opened = TableRegistry(layout, files)
    opened.open_blocking(
        TableContext(
            cluster=identity.cluster,
            broker=identity.name,
            config=config,
            clock=clock,
            timed=timed,
            in_log=in_log,
            cipher=load_cipher_blocking(config.secret_key_file),
        )
    )
    tables = Tables(
        topics=opened[registry.TOPICS],
        groups=opened[registry.GROUPS],
        offsets=opened[registry.OFFSETS],
        delays=opened[registry.DELAYS],
        master_timer=opened[registry.MASTER_TIMER],
        modes=opened[registry.REQUEST_MODES],
        batches=opened[registry.ORDER_INFO],
        filters=opened[registry.GROUP_FILTERS],
        named=opened[registry.NAMED_FILTERS],
        access=opened[registry.ACCESS],
        registry=opened,
    )
    if config.authentication_enabled and config.migrate_plain_acl:
        migrate_blocking(tables.access, config)
    tables.topics.auto = opened[registry.AUTO_TOPICS]
    tables.groups.auto = opened[registry.AUTO_GROUPS]
    return tables
