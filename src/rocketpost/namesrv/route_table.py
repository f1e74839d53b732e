"""The live brokers and their topics: the state of a name server, in memory.

brokers   broker name -> cluster, broker id -> address, zone, acting-master flag
live      address -> identity, owner, last heartbeat, timeout, data version, filter servers
queues    ``topic_queues``: topic -> broker name -> queues

An ``owner`` is the connection through which a broker registered: when it is lost, so is the broker.
``claims`` decides about a name, an id or an address that another broker has. Every change is
checked first and then made as a whole; a refusal changes nothing.

Invariant: every queue entry belongs to a known broker, every broker has at least one live address,
and an address belongs to exactly one broker. Memory is bounded by ``RouteLimits``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from rocketpost.codec.bodies.cluster import ClusterInfo, MemberGroup
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import NoPermission, ServerError, SystemBusy
from rocketpost.codec.headers.namesrv import RegisterBrokerResponse
from rocketpost.model.names import MEMBER_TOPIC_PREFIX
from rocketpost.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from rocketpost.model.topic import PERM_READ, PERM_WRITE, DataVersion
from rocketpost.namesrv.claims import LiveBroker, PastMembers, check_address_claim, check_id_claim
from rocketpost.namesrv.min_broker import MinBrokerChange, after_joining, after_leaving
from rocketpost.namesrv.report import (
    BrokerIdentity,
    BrokerReport,
    check_name,
    check_queues,
    check_report,
)
from rocketpost.namesrv.topic_queues import TopicQueues

LIVE_MS_DEFAULT: Final = 120_000
LIVE_MS_MAX: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLimits:
    """Bounds on the state of a name server.

    Args:
        brokers_max: Maximum of live broker addresses.
        brokers_a_host_max: Maximum of them per registering host.
        entries_max: Maximum of topics, counted once per broker that serves them, and logical
            queues.
    """

    brokers_max: int = 4096
    brokers_a_host_max: int = 128
    entries_max: int = 1_000_000


class FoundRoute(NamedTuple):
    """A route, with the zones and queue mappings that some topics have."""

    route: TopicRoute
    zones: dict[str, str]
    mappings: dict[str, QueueMapping]

    def with_order(self, order: str | None) -> FoundRoute:
        """Return the route as that of an ordered topic; ``order`` lists its queues by broker."""
        return self._replace(route=replace(self.route, order_topic_conf=order))


class RemovedBroker(NamedTuple):
    """A removed broker and its connection."""

    identity: BrokerIdentity
    owner: Hashable


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str]
    acting_master: bool
    zone: str | None


class RouteTable:
    """The tables of one name server. Not thread-safe: belongs to its event loop.

    Args:
        limits: Bounds on the tables.
        on_min_change: Called when the smallest id of a group has changed in which a slave may act
            for the master.
    """

    def __init__(
        self,
        limits: RouteLimits | None = None,
        *,
        on_min_change: Callable[[MinBrokerChange], None] | None = None,
    ) -> None:
        self._limits = limits or RouteLimits()
        self._on_min_change = on_min_change
        self._queues = TopicQueues(self._limits.entries_max)
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[str, LiveBroker] = {}
        self._past = PastMembers()
        self._hosts: Counter[str] = Counter()
        self._owned: dict[Hashable, set[str]] = {}
        self._edition = 0

    @property
    def edition(self) -> int:
        """A number that grows with every change that can affect a route."""
        return self._edition + self._queues.edition

    # Registration.

    def register(
        self,
        report: BrokerReport,
        *,
        owner: Hashable,
        now_ms: int,
        source: str = "",
        drop_missing_topics: bool = False,
    ) -> RegisterBrokerResponse:
        """Register a broker; return what a slave needs to know about its master.

        Args:
            report: The broker's report.
            owner: The connection through which it registers.
            now_ms: The current time.
            source: The host from which the request comes.
            drop_missing_topics: Whether to remove its topics that are not in the report.

        Raises:
            InvalidParameter: Part of the report is illegal.
            ServerError: It is a first report with a single topic, or claims a name, an id or an
                address of another live broker.
            SystemBusy: The name server is full.
        """
        check_report(report)
        identity, table = report.identity, report.registration.table
        known = self._live.get(identity.address)
        check_address_claim(known, identity, owner=owner, source=source, now_ms=now_ms)
        broker = self._broker_for(identity)
        holder = broker.addresses.get(identity.id) if broker else None
        check_id_claim(
            self._live.get(holder or ""),
            known,
            identity,
            state_version=table.data_version.state_version,
            owner=owner,
            source=source,
            now_ms=now_ms,
        )
        if holder is None and len(table.topic_config_table) == 1:
            raise ServerError(
                f"register broker failed: {identity.name} is not known here yet, "
                "so its first registration must bring all its topics"
            )
        before = broker.addresses if broker else {}
        addresses = {key: value for key, value in before.items() if value != identity.address}
        addresses[identity.id] = identity.address
        leads = identity.id == MASTER_ID or (
            report.acting_master is not None and identity.id == min(addresses)
        )
        if known is None:
            self._check_room(source)
        if leads:
            self._queues.check_room(identity.name, table, owned=self._names_from(source))

        previous = self._take_over(identity, holder)
        self._set_broker(report, addresses)
        if leads:
            fresh = holder is None or previous is None or previous != table.data_version
            if drop_missing_topics and not table.topic_queue_mapping_info_map:
                missing = self._queues.topics_of(identity.name) - table.topic_config_table.keys()
                self._queues.drop(identity.name, missing)
            read_only = bool(report.acting_master) and identity.id != MASTER_ID
            self._queues.update(identity.name, table, fresh=fresh, read_only=read_only)
        self._set_live(report, owner, source, now_ms)
        if report.acting_master:
            change = after_joining(identity.name, before, addresses, ha_address=report.ha_address)
            self._tell(change)
        return self._master_for(identity, addresses)

    def unregister(
        self, identity: BrokerIdentity, *, owner: Hashable = None, source: str = ""
    ) -> bool:
        """Remove a broker that unregisters; return whether it was known.

        Raises:
            NoPermission: The request comes from another host.
        """
        live = self._live.get(identity.address)
        if live is None or live.identity[:2] != identity[:2]:
            return False
        if not live.is_from(owner, source):
            raise NoPermission(
                f"{identity.name} at {identity.address} was registered from {live.source}; "
                "nobody else can unregister it"
            )
        self._remove([identity.address])
        return True

    def remove_lost(self, owner: Hashable, count_max: int | None = None) -> list[BrokerIdentity]:
        """Remove brokers of a lost connection, at most ``count_max`` of them."""
        addresses = list(self._owned.get(owner, ()))[:count_max]
        return [gone.identity for gone in self._remove(addresses)]

    def expire(self, now_ms: int, count_max: int | None = None) -> list[RemovedBroker]:
        """Remove brokers that were silent for too long, at most ``count_max`` of them."""
        late = [
            address
            for address, live in self._live.items()
            if live.last_ms + live.timeout_ms < now_ms
        ]
        return self._remove(late[:count_max])

    def touch(self, cluster: str, address: str, now_ms: int, *, source: str = "") -> bool:
        """Record a heartbeat; return whether a broker of that host is known."""
        live = self._live.get(address)
        if live is None or live.identity.cluster != cluster or live.source != source:
            return False
        live.last_ms = now_ms
        return True

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of its topics that a broker registered last."""
        live = self._live.get(address)
        return live.data_version if live and live.identity.cluster == cluster else None

    # Queries of clients and tools.

    def route(self, topic: str, *, acting_master: bool = False) -> FoundRoute | None:
        """Return the route of ``topic``, or None.

        Args:
            topic: The topic.
            acting_master: Whether to show the first slave of a lost master in its place. The topic
                by which brokers learn the members of their group always shows them as they are.
        """
        acting_master = acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX)
        queues = self._queues.brokers(topic)
        if not queues:
            return None
        names = sorted(queues)
        brokers = []
        for name in names:
            broker = self._broker_data(name)
            if acting_master and not queues[name].perm & PERM_WRITE:
                broker = _with_acting_master(broker)
            brokers.append(broker)
        addresses = [a for name in names for a in self._brokers[name].addresses.values()]
        filters = {address: self._live[address].filter_servers for address in addresses}
        route = TopicRoute(
            broker_datas=brokers,
            filter_server_table={a: list(servers) for a, servers in filters.items() if servers},
            queue_datas=[queues[name] for name in names],
        )
        return FoundRoute(route, self._zones(names), self._queues.mappings(topic))

    def cluster_info(self) -> tuple[ClusterInfo, dict[str, str]]:
        """Return all brokers and clusters, and the zones of brokers that have one."""
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster, []).append(name)
        brokers = {name: self._broker_data(name) for name in self._brokers}
        info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)
        return info, self._zones(self._brokers)

    def member_group(self, cluster: str, name: str) -> MemberGroup:
        """Return the addresses that share a broker name; empty if it is unknown."""
        broker = self._brokers.get(name)
        addresses = dict(broker.addresses) if broker else {}
        return MemberGroup(broker_addrs=addresses, broker_name=name, cluster=cluster)

    def topics(self) -> list[str]:
        """Return every topic, sorted."""
        return sorted(self._queues.topics())

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of the brokers of ``cluster``, sorted."""
        names = self._names_in(cluster)
        return [t for t in self.topics() if not names.isdisjoint(self._queues.brokers(t))]

    def topics_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flag satisfies ``wanted``, sorted."""
        return [
            topic
            for topic in self.topics()
            if wanted(next(iter(self._queues.brokers(topic).values())).topic_sys_flag)
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the topics named after clusters and brokers, and any broker's address."""
        names = []
        for cluster in sorted({broker.cluster for broker in self._brokers.values()}):
            names += [cluster, *sorted(self._names_in(cluster))]
        return names, next(iter(self._live), None)

    # Changes by tools.

    def wipe_write_perm(self, name: str) -> int:
        """Take a broker out of all publish routes; return the number of topics."""
        return self._queues.change_perms(name, _without_write)

    def add_write_perm(self, name: str) -> int:
        """Put a broker back into all publish routes; return the number of topics."""
        return self._queues.change_perms(name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from one cluster or from all; its brokers may register it again."""
        for name in self._brokers if cluster is None else self._names_in(cluster):
            self._queues.drop(name, [topic])

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add one topic on known brokers.

        Raises:
            InvalidParameter: A name or a number is illegal.
            ServerError: One of the brokers is unknown.
            SystemBusy: The name server is full.
        """
        check_name(topic, "topic")
        by_broker = {each.broker_name: each for each in queues}
        for name, each in by_broker.items():
            check_queues(topic, each)
            if name not in self._brokers:
                raise ServerError(f"cannot register topic {topic}: no broker {name[:128]!r} here")
        self._queues.check_growth(len(by_broker.keys() - self._queues.brokers(topic).keys()))
        for each in by_broker.values():
            self._queues.put(topic, each)

    # Inside.

    def _broker_for(self, identity: BrokerIdentity) -> _Broker | None:
        broker = self._brokers.get(identity.name)
        if broker is None or broker.cluster == identity.cluster:
            return broker
        if set(broker.addresses.values()) == {identity.address}:
            return None  # It has moved to another cluster; its old registration is removed.
        raise ServerError(
            f"register broker failed: the name {identity.name} is taken by cluster "
            f"{broker.cluster}; broker names must differ between clusters"
        )

    def _check_room(self, source: str) -> None:
        if len(self._live) >= self._limits.brokers_max:
            raise SystemBusy(f"the name server is full: it has {len(self._live)} brokers")
        if self._hosts[source] >= self._limits.brokers_a_host_max:
            raise SystemBusy(
                f"the host {source} has registered {self._hosts[source]} brokers already, and one "
                "host may register no more (brokerCountPerHostMax)"
            )

    def _names_from(self, source: str) -> set[str]:
        return {live.identity.name for live in self._live.values() if live.source == source}

    def _take_over(self, identity: BrokerIdentity, holder: str | None) -> DataVersion | None:
        """Remove the address's former registration and the former holder of the id.

        Returns the data version that this address registered last under this name.
        """
        previous = self._live.get(identity.address)
        if previous is not None and previous.identity[:2] != identity[:2]:
            self._remove([identity.address])
            previous = None
        if holder is not None and holder != identity.address:
            self._forget_live(holder)
        return previous.data_version if previous is not None else None

    def _set_broker(self, report: BrokerReport, addresses: dict[int, str]) -> None:
        cluster, name = report.identity[:2]
        broker = _Broker(cluster, addresses, bool(report.acting_master), report.zone)
        if self._brokers.get(name) != broker:
            self._brokers[name] = broker
            self._edition += 1

    def _set_live(self, report: BrokerReport, owner: Hashable, source: str, now_ms: int) -> None:
        address = report.identity.address
        timeout_ms = report.timeout_ms or 0
        filters = report.registration.filter_server_list
        previous = self._forget_live(address)
        self._edition += filters != (previous.filter_servers if previous else [])
        self._hosts[source] += 1
        self._live[address] = LiveBroker(
            identity=report.identity,
            owner=owner,
            source=source,
            since_ms=self._past.since_ms(report.identity, source=source, now_ms=now_ms),
            last_ms=now_ms,
            timeout_ms=min(timeout_ms, LIVE_MS_MAX) if timeout_ms > 0 else LIVE_MS_DEFAULT,
            data_version=report.registration.table.data_version,
            ha_address=report.ha_address,
            filter_servers=filters,
        )
        self._owned.setdefault(owner, set()).add(address)

    def _forget_live(self, address: str) -> LiveBroker | None:
        live = self._live.pop(address, None)
        if live is not None:
            self._past.keep(live)
            self._hosts[live.source] -= 1
            if not self._hosts[live.source]:
                del self._hosts[live.source]
            owned = self._owned[live.owner]
            owned.discard(address)
            if not owned:
                del self._owned[live.owner]
        return live

    def _remove(self, addresses: Collection[str]) -> list[RemovedBroker]:
        gone = []
        for address in addresses:
            live = self._forget_live(address)
            assert live is not None
            gone.append(RemovedBroker(live.identity, live.owner))
            name = live.identity.name
            broker = self._brokers[name]
            kept = {key: value for key, value in broker.addresses.items() if value != address}
            before, broker.addresses = broker.addresses, kept
            self._edition += 1
            if not kept:
                del self._brokers[name]
                self._queues.drop_broker(name)
            elif broker.acting_master:
                if MASTER_ID not in kept:
                    self._queues.change_perms(name, _without_write)
                self._tell(after_leaving(name, before, kept))
        return gone

    def _tell(self, change: MinBrokerChange | None) -> None:
        if change is not None and self._on_min_change is not None:
            self._on_min_change(change)

    def _master_for(
        self, identity: BrokerIdentity, addresses: dict[int, str]
    ) -> RegisterBrokerResponse:
        master = addresses.get(MASTER_ID)
        if identity.id == MASTER_ID or master is None:
            return RegisterBrokerResponse()
        return RegisterBrokerResponse(
            master_addr=master, ha_server_addr=self._live[master].ha_address
        )

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        return BrokerData(
            broker_addrs=dict(broker.addresses),
            broker_name=name,
            cluster=broker.cluster,
            enable_acting_master=broker.acting_master,
        )

    def _names_in(self, cluster: str) -> set[str]:
        return {name for name, broker in self._brokers.items() if broker.cluster == cluster}

    def _zones(self, names: Iterable[str]) -> dict[str, str]:
        zones = ((name, self._brokers[name].zone) for name in names)
        return {name: zone for name, zone in zones if zone is not None}


def restrict_to_zone(found: FoundRoute, zone: str) -> FoundRoute:
    """Return the part of a route in ``zone``; brokers without a master stay."""
    route = found.route
    away = {
        broker.broker_name: broker
        for broker in route.broker_datas
        if broker.master is not None
        and found.zones.get(broker.broker_name, "").lower() != zone.lower()
    }
    gone = {address for broker in away.values() for address in broker.broker_addrs.values()}
    kept = TopicRoute(
        broker_datas=[each for each in route.broker_datas if each.broker_name not in away],
        filter_server_table={
            address: servers
            for address, servers in route.filter_server_table.items()
            if address not in gone
        },
        order_topic_conf=route.order_topic_conf,
        queue_datas=[each for each in route.queue_datas if each.broker_name not in away],
    )
    return FoundRoute(kept, found.zones, found.mappings)


def _without_write(perm: int) -> int:
    return perm & ~PERM_WRITE


def _with_acting_master(broker: BrokerData) -> BrokerData:
    if broker.master is not None or not broker.enable_acting_master:
        return broker
    addresses = dict(broker.broker_addrs)
    addresses[MASTER_ID] = addresses.pop(min(addresses))
    return replace(broker, broker_addrs=addresses)
