"""Request handlers of a name server: routes, registrations, key-value tables, settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.codec.bodies.cluster import encode_cluster, encode_member_group
from rocketpost.codec.bodies.kv import encode_kv_table
from rocketpost.codec.bodies.registration import (
    body_crc,
    decode_data_version,
    decode_registration,
    encode_data_version,
)
from rocketpost.codec.bodies.route import decode_route, encode_route
from rocketpost.codec.bodies.topic import TopicList
from rocketpost.codec.codes import VERSION_STANDARD_JSON, RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import (
    InvalidParameter,
    NoPermission,
    QueryNotFound,
    ServerError,
    TopicNotExist,
)
from rocketpost.codec.headers import namesrv as headers
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ConfigError, Fault
from rocketpost.model.clock import Clock
from rocketpost.namesrv.kv_config import ORDER_TOPIC_CONFIG
from rocketpost.namesrv.report import (
    BrokerIdentity,
    BrokerReport,
    check_address,
    check_identity,
    check_name,
)
from rocketpost.namesrv.route_table import FoundRoute, RouteTable, restrict_to_zone
from rocketpost.server.access.gate import Caller
from rocketpost.server.namesrv.kv_file import KvFile
from rocketpost.server.routes.access import (
    GET,
    LIST,
    PUB,
    SUB,
    UPDATE,
    of_cluster,
    of_every_topic,
    of_named_cluster,
    of_topic,
    strict,
)
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import (
    apply_changes,
    format_properties,
    keys_of,
    parse_properties,
    to_properties,
)
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

CACHE_BYTES_MAX: Final = 16 * 1024 * 1024
_UNIT: Final = 1
_UNIT_SUB: Final = 2


class NamesrvHandlers:
    """The request handlers of a name server. Belongs to the event loop.

    Args:
        config: The settings; UPDATE_NAMESRV_CONFIG replaces them.
        table: The routes.
        kv: The key-value table.
        clock: Measures the silence of brokers.
        on_registered: Called with every broker that is new, or has another id than before.
        on_config: Called after the settings have changed.
    """

    def __init__(
        self,
        *,
        config: NamesrvConfig,
        table: RouteTable,
        kv: KvFile,
        clock: Clock,
        on_registered: Callable[[BrokerIdentity], None],
        on_config: Callable[[], None],
    ) -> None:
        self.config = config
        self._table = table
        self._kv = kv
        self._clock = clock
        self._on_registered = on_registered
        self._on_config = on_config
        self._started_ms = clock.now_ms()
        self._cache = _RouteCache()

    def routes(self) -> Sequence[Route]:
        """Return the routes of a name server."""
        code = RequestCode
        listing = strict(of_every_topic(LIST))
        return [
            waiting(code.PUT_KV_CONFIG, headers.PutKv, of_cluster(UPDATE), self._put_kv),
            plain(code.GET_KV_CONFIG, headers.KvKey, of_cluster(GET), self._get_kv),
            waiting(code.DELETE_KV_CONFIG, headers.KvKey, of_cluster(UPDATE), self._delete_kv),
            plain(
                code.GET_KVLIST_BY_NAMESPACE, headers.KvNamespace, of_cluster(GET), self._list_kv
            ),
            plain(
                code.REGISTER_BROKER,
                headers.RegisterBroker,
                of_named_cluster(UPDATE),
                self._register,
            ),
            plain(
                code.UNREGISTER_BROKER,
                headers.UnregisterBroker,
                of_named_cluster(UPDATE),
                self._unregister,
            ),
            plain(
                code.QUERY_DATA_VERSION,
                headers.QueryDataVersion,
                of_named_cluster(GET),
                self._query_data_version,
            ),
            plain(
                code.BROKER_HEARTBEAT,
                headers.BrokerHeartbeat,
                of_named_cluster(UPDATE),
                self._heartbeat,
            ),
            plain(
                code.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute, of_topic(PUB, SUB, GET), self._route
            ),
            plain(
                code.GET_BROKER_CLUSTER_INFO, NO_HEADER, strict(of_cluster(GET)), self._cluster_info
            ),
            plain(
                code.GET_BROKER_MEMBER_GROUP,
                headers.GetMemberGroup,
                of_named_cluster(GET),
                self._member_group,
            ),
            plain(
                code.WIPE_WRITE_PERM_OF_BROKER,
                headers.BrokerName,
                of_cluster(UPDATE),
                self._wipe_write_perm,
            ),
            plain(
                code.ADD_WRITE_PERM_OF_BROKER,
                headers.BrokerName,
                of_cluster(UPDATE),
                self._add_write_perm,
            ),
            plain(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NO_HEADER, listing, self._all_topics),
            plain(
                code.DELETE_TOPIC_IN_NAMESRV,
                headers.DeleteTopic,
                of_named_cluster(UPDATE),
                self._delete_topic,
            ),
            plain(
                code.REGISTER_TOPIC_IN_NAMESRV,
                headers.RegisterTopic,
                of_cluster(UPDATE),
                self._register_topic,
            ),
            plain(
                code.GET_TOPICS_BY_CLUSTER,
                headers.TopicsByCluster,
                listing,
                self._topics_by_cluster,
            ),
            plain(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NO_HEADER, listing, self._system_topics),
            plain(code.GET_UNIT_TOPIC_LIST, NO_HEADER, listing, self._unit_topics),
            plain(code.GET_HAS_UNIT_SUB_TOPIC_LIST, NO_HEADER, listing, self._unit_sub_topics),
            plain(
                code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
                NO_HEADER,
                listing,
                self._unit_sub_without_unit_topics,
            ),
            plain(
                code.UPDATE_NAMESRV_CONFIG,
                NO_HEADER,
                strict(of_cluster(UPDATE)),
                self._update_config,
            ),
            plain(code.GET_NAMESRV_CONFIG, NO_HEADER, strict(of_cluster(GET)), self._get_config),
        ]

    def note_start(self) -> None:
        """Start the time during which routes may be withheld."""
        self._started_ms = self._clock.now_ms()

    # Brokers.

    def _register(
        self, connection: Connection, command: Command, header: headers.RegisterBroker
    ) -> Reply:
        body = bytes(command.body)
        if header.body_crc32 and body_crc(body) != header.body_crc32:
            raise ServerError("crc32 not match")
        report = BrokerReport(
            identity=_identity(header),
            ha_address=header.ha_server_addr,
            zone=header.zone_name or None,
            timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            registration=decode_registration(
                body, version=command.version, compressed=header.compressed
            ),
        )
        identity = report.identity
        known = self._is_registered(identity)
        try:
            result = self._table.register(
                report,
                owner=connection,
                source=_source(connection, command),
                now_ms=self._clock.now_ms(),
                drop_missing_topics=self.config.drop_missing_topics,
            )
        except Fault as error:
            _log_refusal("registration", connection, identity, error)
            raise
        if not known and self._is_registered(identity):
            self._on_registered(identity)
        orders = self._kv.current.namespace(ORDER_TOPIC_CONFIG)
        wanted = self.config.order_topics_to_broker and orders is not None
        return Reply(
            fields=to_fields(result), body=encode_kv_table(orders or {}) if wanted else b""
        )

    def _is_registered(self, identity: BrokerIdentity) -> bool:
        """Tell whether a broker is alive under its name, id and address."""
        if self._table.data_version(identity.cluster, identity.address) is None:
            return False
        group = self._table.member_group(identity.cluster, identity.name)
        return group.broker_addrs.get(identity.id) == identity.address

    def _unregister(
        self, connection: Connection, command: Command, header: headers.UnregisterBroker
    ) -> Reply:
        identity = _identity(header)
        check_identity(identity)
        try:
            self._table.unregister(identity, owner=connection, source=_source(connection, command))
        except Fault as error:
            _log_refusal("unregistration", connection, identity, error)
            raise
        return Reply()

    def _query_data_version(
        self, connection: Connection, command: Command, header: headers.QueryDataVersion
    ) -> Reply:
        check_identity(_identity(header))
        theirs = decode_data_version(command.body)
        ours = self._table.data_version(header.cluster_name, header.broker_addr)
        # Acting masters use this request as a heartbeat, without waiting for its answer.
        self._touch(_source(connection, command), header.cluster_name, header.broker_addr)
        fields = to_fields(headers.QueryDataVersionResponse(changed=ours != theirs))
        return Reply(fields=fields, body=encode_data_version(ours) if ours is not None else b"")

    def _heartbeat(
        self, connection: Connection, command: Command, header: headers.BrokerHeartbeat
    ) -> Reply:
        check_name(header.cluster_name, "cluster name")
        check_address(header.broker_addr, "broker address")
        self._touch(_source(connection, command), header.cluster_name, header.broker_addr)
        return Reply()

    def _touch(self, source: str, cluster: str, address: str) -> None:
        """Record a sign of life. Only the broker's own host can keep it in the routes."""
        self._table.touch(cluster, address, self._clock.now_ms(), source=source)

    # Routes.

    def _route(self, _: Connection, command: Command, header: headers.GetRoute) -> Reply:
        check_name(header.topic, "topic")
        if not self._ready():
            raise ServerError("name server not ready")
        if (header.zone_mode or "").lower() == "true" and (header.zone_name or "").strip():
            near = restrict_to_zone(self._find(header.topic), header.zone_name or "")
            # Java encodes this answer again, always in the plain form.
            return Reply(body=_encode(near, standard=False))
        standard = command.version >= VERSION_STANDARD_JSON or bool(
            header.accept_standard_json_only
        )
        key = (header.topic, standard)
        edition = (self._table.edition, self._kv.current, self.config)
        body = self._cache.get(key, edition)
        if body is None:
            body = _encode(self._find(header.topic), standard=standard)
            self._cache.put(key, body)
        return Reply(body=body)

    def _find(self, topic: str) -> FoundRoute:
        found = self._table.route(topic, acting_master=self.config.acting_master)
        if found is None:
            raise TopicNotExist(
                f"No topic route info in name server for the topic: {topic}; "
                "create the topic, or see whether its broker is registered here"
            )
        if not self.config.order_messages:
            return found
        order = self._kv.current.get(ORDER_TOPIC_CONFIG, topic)
        return found.with_order(order)

    def _ready(self) -> bool:
        if not self.config.wait_for_service:
            return True
        waited_ms = self._clock.now_ms() - self._started_ms
        return waited_ms >= self.config.wait_for_service_seconds * 1000

    def _cluster_info(self, _: Connection, command: Command, header: None) -> Reply:
        info, zones = self._table.cluster_info()
        return Reply(body=encode_cluster(info, zones=zones))

    def _member_group(
        self, _: Connection, command: Command, header: headers.GetMemberGroup
    ) -> Reply:
        check_name(header.cluster_name, "cluster name")
        check_name(header.broker_name, "broker name")
        group = self._table.member_group(header.cluster_name, header.broker_name)
        return Reply(body=encode_member_group(group))

    # Topics.

    def _wipe_write_perm(
        self, _: Connection, command: Command, header: headers.BrokerName
    ) -> Reply:
        count = self._table.wipe_write_perm(_broker_name(header))
        return Reply(fields=to_fields(headers.WipeWritePermResponse(wipe_topic_count=count)))

    def _add_write_perm(self, _: Connection, command: Command, header: headers.BrokerName) -> Reply:
        count = self._table.add_write_perm(_broker_name(header))
        return Reply(fields=to_fields(headers.AddWritePermResponse(add_topic_count=count)))

    def _delete_topic(self, _: Connection, command: Command, header: headers.DeleteTopic) -> Reply:
        check_name(header.topic, "topic")
        if header.cluster_name:
            check_name(header.cluster_name, "cluster name")
        self._table.delete_topic(header.topic, header.cluster_name or None)
        return Reply()

    def _register_topic(
        self, _: Connection, command: Command, header: headers.RegisterTopic
    ) -> Reply:
        topic = header.topic
        self._table.register_topic(topic, decode_route(command.body).queue_datas)
        return Reply()

    def _all_topics(self, _: Connection, command: Command, header: None) -> Reply:
        if not self.config.all_topic_list:
            raise ServerError("disable: enableAllTopicList is false")
        return _topic_list(self._table.topics())

    def _topics_by_cluster(
        self, _: Connection, command: Command, header: headers.TopicsByCluster
    ) -> Reply:
        self._check_lists_enabled()
        cluster = header.cluster
        check_name(cluster, "cluster name")
        return _topic_list(self._table.topics_of_cluster(cluster))

    def _system_topics(self, _: Connection, command: Command, header: None) -> Reply:
        self._check_lists_enabled()
        names, address = self._table.system_topics()
        return _topic_list(names, address)

    def _unit_topics(self, _: Connection, command: Command, header: None) -> Reply:
        return self._topics_by_flag(lambda flag: bool(flag & _UNIT))

    def _unit_sub_topics(self, _: Connection, command: Command, header: None) -> Reply:
        return self._topics_by_flag(lambda flag: bool(flag & _UNIT_SUB))

    def _unit_sub_without_unit_topics(self, _: Connection, command: Command, header: None) -> Reply:
        return self._topics_by_flag(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)

    def _topics_by_flag(self, wanted: Callable[[int], bool]) -> Reply:
        self._check_lists_enabled()
        return _topic_list(self._table.topics_by_flag(wanted))

    def _check_lists_enabled(self) -> None:
        if not self.config.topic_list:
            raise ServerError("disable: enableTopicList is false")

    # The key-value table.

    async def _put_kv(self, _: Connection, command: Command, header: headers.PutKv) -> Reply:
        await self._kv.change(lambda kv: kv.put(header.namespace, header.key, header.value))
        return Reply()

    async def _delete_kv(self, _: Connection, command: Command, header: headers.KvKey) -> Reply:
        await self._kv.change(lambda kv: kv.delete(header.namespace, header.key))
        return Reply()

    def _get_kv(self, _: Connection, command: Command, header: headers.KvKey) -> Reply:
        value = self._kv.current.get(header.namespace, header.key)
        if value is None:
            where = f"Namespace: {header.namespace[:255]} Key: {header.key[:255]}"
            raise QueryNotFound(f"No config item, {where}")
        return Reply(fields=to_fields(headers.KvValue(value=value)))

    def _list_kv(self, _: Connection, command: Command, header: headers.KvNamespace) -> Reply:
        namespace = header.namespace
        table = self._kv.current.namespace(namespace)
        if table is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace[:255]}")
        return Reply(body=encode_kv_table(table))

    # Settings.

    def _get_config(self, _: Connection, command: Command, header: None) -> Reply:
        return Reply(body=format_properties(to_properties(self.config)).encode())

    def _update_config(self, _: Connection, command: Command, header: None) -> Reply:
        known = keys_of(NamesrvConfig)
        try:
            values = parse_properties(bytes(command.body).decode("utf-8", "replace"))
            for key in values:
                if key in known and not known[key].metadata["mutable"]:
                    raise NoPermission(f"{key} can only be set in the file, before the start")
            if not values:
                raise InvalidParameter("the request names no setting")
            self.config = apply_changes(self.config, values)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from None
        self._on_config()
        return Reply()


class _RouteCache:
    """Encoded routes of one edition of the tables, so that a poll costs only a look-up."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, bool], bytes] = {}
        self._edition: tuple[object, ...] = ()
        self._bytes = 0

    def get(self, key: tuple[str, bool], edition: tuple[object, ...]) -> bytes | None:
        if edition != self._edition:
            self._clear()
            self._edition = edition
        return self._bodies.get(key)

    def put(self, key: tuple[str, bool], body: bytes) -> None:
        if self._bytes + len(body) > CACHE_BYTES_MAX:
            self._clear()
        self._bodies[key] = body
        self._bytes += len(body)

    def _clear(self) -> None:
        self._bodies.clear()
        self._bytes = 0


def _source(connection: Connection, command: Command) -> str:
    """Return the origin of a claim: the host, and the user if access control is on."""
    caller: Caller | None = command.caller
    host = connection.peer[0]
    return host if caller is None else f"{caller.name}@{host}"


def _identity(
    header: headers.RegisterBroker | headers.UnregisterBroker | headers.QueryDataVersion,
) -> BrokerIdentity:
    return BrokerIdentity(
        header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
    )


def _log_refusal(what: str, connection: Connection, identity: BrokerIdentity, error: Fault) -> None:
    logger.warning(
        "%s refused: peer=%s name=%s id=%s address=%s reason=%s",
        what, connection.peer_text, identity.name, identity.id, identity.address, error,
    )  # fmt: skip


def _broker_name(header: headers.BrokerName) -> str:
    name = header.broker_name
    check_name(name, "broker name")
    return name


def _encode(found: FoundRoute, *, standard: bool) -> bytes:
    return encode_route(found.route, standard=standard, zones=found.zones, mappings=found.mappings)


def _topic_list(names: list[str], address: str | None = None) -> Reply:
    return Reply(body=encode(TopicList(topic_list=names, broker_addr=address)))
