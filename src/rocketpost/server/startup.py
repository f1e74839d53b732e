"""Loads the settings, and opens the state that a broker process keeps from its start to its stop.

Lost tables are repaired here: topics in the log that the tables lack are restored.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.own_state import message_topic
from rocketpost.broker.stats import BrokerStats
from rocketpost.client.compression import decompress
from rocketpost.errors import ConfigError
from rocketpost.server.access.control import AUDIT_FILE, AccessControl, own_signature
from rocketpost.server.clock import BrokerClock
from rocketpost.server.context import BrokerContext
from rocketpost.server.group.life.new_log import forget_derived_blocking
from rocketpost.server.logs.output import apply_levels
from rocketpost.server.peer_ports.login import PeerLogin
from rocketpost.server.peer_ports.security import PeerSecurity
from rocketpost.server.peers import Peers
from rocketpost.server.settings.broker import BrokerConfig, broker_settings
from rocketpost.server.settings.limits import topic_rules
from rocketpost.server.settings.live_config import (
    OVERRIDES_FILE,
    LiveConfig,
    Override,
    apply_overrides,
    decode_overrides,
)
from rocketpost.server.tables.adoption import adopt_topics
from rocketpost.server.tables.broker_tables import Identity, Tables, load_tables_blocking
from rocketpost.server.tables.persistence import File
from rocketpost.server.tables.registry import OVERRIDES
from rocketpost.settings import adjustments
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import Layout
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.message_store import MessageStore
from rocketpost.store.tables import TableFile
from rocketpost.transport.host import local_ip
from rocketpost.transport.turns import Turns

logger = logging.getLogger(__name__)

_NO_TABLES: Final = (
    "config/ has no tables, though the log has messages: groups, offsets and settings start empty"
)


async def load_settings(
    given: Mapping[str, str], *, root: str, clock: BrokerClock, files: FileSystem
) -> tuple[LiveConfig, TableFile[dict[str, Override]]]:
    """Return the settings of a start: the given ones, with the changes that administrators made.

    Args:
        given: Properties by RocketMQ's keys.
        root: The directory of the store, which holds the file with the changes.
        clock: The broker's clock.
        files: The file system.

    Returns:
        The settings, and the file with the changes.

    Raises:
        ConfigError: A setting cannot be honoured.
        StoreError: The file and its backup are lost.
    """
    file: TableFile[dict[str, Override]] = TableFile(
        f"{Layout(root).config}/{OVERRIDES_FILE}",
        files=files,
        decode=decode_overrides,
        empty=dict,
        is_guarded=True,
    )
    overrides = await asyncio.to_thread(file.load_blocking)
    values, kept = apply_overrides(
        given, overrides, (BrokerConfig, StoreConfig), now_ms=clock.now_ms()
    )
    broker, store = broker_settings(values)
    for section in (broker, store):
        for note in adjustments(section, values):
            logger.warning("setting adjusted: %s", note)
    return LiveConfig(broker, store, clock=clock, from_file=given, overrides=kept), file


async def open_store(
    config: StoreConfig,
    *,
    clock: BrokerClock,
    files: FileSystem,
    is_member: bool,
    accept_missing: bool,
) -> tuple[MessageStore, MemberStore | None]:
    """Open the store of a broker, as that of a group's member if it is one.

    Raises:
        StoreError: The store cannot be opened.
    """
    if is_member:
        member = await asyncio.to_thread(
            MemberStore.open_blocking,
            config,
            clock=clock,
            files=files,
            on_reset=partial(forget_derived_blocking, config, files),
        )
        return member.store, member
    store = await asyncio.to_thread(
        MessageStore.open_blocking,
        config,
        clock=clock,
        files=files,
        accept_missing=accept_missing,
    )
    return store, None


async def open_context(
    store: MessageStore,
    *,
    identity: Identity,
    clock: BrokerClock,
    settings: LiveConfig,
    overrides_file: File,
    turns: Turns,
    name_servers: Callable[[], Sequence[str]],
    is_member: bool = False,
) -> BrokerContext:
    """Load the tables of an open store, repair them, and return the broker's state.

    A member of a group restores them from the log later (``server.group.tables.reader``).

    Raises:
        StoreError: A table and its backup are lost, and the broker must not start without it.
    """
    broker, store_config = settings.section(BrokerConfig), settings.section(StoreConfig)
    tables = await asyncio.to_thread(
        load_tables_blocking,
        store.layout,
        store.files,
        identity=identity,
        config=broker,
        clock=clock,
        timed=store_config.timer_enabled,
        in_log=is_member,
    )
    tables.registry.add(OVERRIDES, settings, overrides_file)
    persistence = tables.registry.persistence(broker, flush_blocking=store.flush_blocking)
    tables.topics.on_change = persistence.note_change
    tables.groups.on_change = persistence.note_change
    return BrokerContext(
        identity=identity,
        clock=clock,
        settings=settings,
        store=store,
        tables=tables,
        persistence=persistence,
        repairs=_repair_tables(tables, store, broker),
        membership=Membership(clock=clock, expiry_ms=broker.member_expiry_ms),
        locks=QueueLocks(clock=clock, lock_ms=broker.lock_ms),
        filters=Filters(table=tables.filters, unpack=decompress, resolve=tables.named.text),
        stats=BrokerStats(clock=clock, day_of=_local_day),
        turns=turns,
        name_servers=name_servers,
        peers=Peers(own_signature(broker), _log_ports(broker, is_member)),
        access=AccessControl.of(
            tables.access,
            broker,
            cluster=identity.cluster,
            audit_path=f"{store.layout.root}/{AUDIT_FILE}",
            topic_at=partial(message_topic, store.record_at),
        ),
    )


def _log_ports(config: BrokerConfig, is_member: bool) -> PeerSecurity:
    """Return the protection of the ports by which brokers copy their log.

    Raises:
        ConfigError: A member of a group could not log in to the others, or would lose users.
    """
    login = PeerLogin(config.inner_login) if config.authentication_enabled else None
    if is_member and login is not None and not (login.is_set and config.secret_key_file):
        raise ConfigError(
            "authenticationEnabled=true and enableDLegerCommitLog=true need two more settings, the "
            "same on all members: innerClientAuthenticationCredentials, with which they log in to "
            "each other, and authSecretKeyFile, so that users can be in the log of the group "
            "without showing their passwords"
        )
    return PeerSecurity(login, config.trusted_networks)


def apply_settings(context: BrokerContext) -> None:
    """Apply the settings in force to the tables, the store and the log of this process."""
    apply_levels(context.broker_config.log_level)
    broker, topics, groups = context.broker_config, context.tables.topics, context.tables.groups
    topics.rules = topic_rules(broker)
    groups.auto_create = broker.auto_create_group
    topics.auto.per_second = groups.auto.per_second = broker.auto_create_per_second
    context.store.configure(context.store_config)


def _repair_tables(tables: Tables, store: MessageStore, config: BrokerConfig) -> tuple[str, ...]:
    """Add missing entries to the tables; return the faults found, and their repairs."""
    repairs = list(tables.registry.repairs)
    if tables.registry.is_bare and store.end_position > 0:
        repairs.append(_NO_TABLES)
        logger.error("tables lost: %s", _NO_TABLES)
    saved_ms = tables.topics.version.timestamp
    tables.topics.add_builtin()
    adopt_topics(
        store,
        tables.topics,
        queue_nums=config.default_topic_queue_nums,
        saved_ms=saved_ms,
        is_old=bool(repairs),
    )
    tables.groups.add_builtin()
    return tuple(repairs)


def _local_day(ms: int) -> int:
    """Return the number of the day in the broker's time zone."""
    return datetime.fromtimestamp(ms / 1000).toordinal()


def resolve_ip_blocking(configured: str) -> str:
    """Return the address for clients; a name is resolved, since records hold the address.

    Raises:
        ConfigError: The name cannot be resolved.
    """
    if not configured:
        return local_ip()
    try:
        return str(ipaddress.ip_address(configured))
    except ValueError:
        try:
            return socket.gethostbyname(configured)
        except OSError as error:
            raise ConfigError(f"brokerIP1={configured!r} is not an address: {error}") from None
