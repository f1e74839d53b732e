"""Settings of the name server, by RocketMQ's keys."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpost.errors import ConfigError
from rocketpost.server.settings.access import AccessConfig
from rocketpost.settings import option

_INT_MAX = 2**31 - 1
_SCAN_MS_MAX = 60_000
_WAIT_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(AccessConfig):
    """Settings of the name server. Keys are RocketMQ's, so an existing namesrv.conf works.

    UPDATE_NAMESRV_CONFIG may change the mutable ones. No path, address or limit is among them:
    anyone who can reach the port must not choose what the process writes or how much it uses.
    """

    listen_port: int = option("listenPort", 9876, important=True)
    bind_address: str = option("bindAddress", "0.0.0.0", important=True)
    kv_config_path: str | None = option("kvConfigPath", "~/namesrv/kvConfig.json", important=True)
    """File of the key-value table; without it the table is only in memory."""
    auth_path: str = option("authConfigPath", "~/namesrv")
    """Directory of users, rules and the audit log, if access control is on."""
    cluster_name: str = option("clusterName", "DefaultCluster")
    """The cluster whose rights count for requests that name none."""

    scan_interval_ms: int = option("scanNotActiveBrokerInterval", 5000, mutable=True)
    order_messages: bool = option("orderMessageEnable", False, mutable=True)
    order_topics_to_broker: bool = option("returnOrderTopicConfigToBroker", True, mutable=True)
    acting_master: bool = option("supportActingMaster", False, mutable=True)
    notify_min_broker: bool = option("notifyMinBrokerIdChanged", False)
    all_topic_list: bool = option("enableAllTopicList", True, mutable=True)
    topic_list: bool = option("enableTopicList", True, mutable=True)
    wait_for_service: bool = option("needWaitForService", False, mutable=True)
    wait_for_service_seconds: int = option("waitSecondsForService", 45, mutable=True)
    drop_missing_topics: bool = option("deleteTopicWithBrokerRegistration", False, mutable=True)
    idle_seconds: int = option("serverChannelMaxIdleTimeSeconds", 120)
    brokers_max: int = option("brokerCountMax", 4096)
    brokers_a_host_max: int = option("brokerCountPerHostMax", 128)
    route_entries_max: int = option("routeEntryCountMax", 1_000_000)

    def __post_init__(self) -> None:
        self.check_access()
        self.check_logs()
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listenPort={self.listen_port} is not a port")
        # Anyone who can reach the port may change these two: dead brokers must not stay forever,
        # and routes must not be withheld.
        if not 0 < self.scan_interval_ms <= _SCAN_MS_MAX:
            raise ConfigError(
                f"scanNotActiveBrokerInterval={self.scan_interval_ms} must be between 1 and "
                f"{_SCAN_MS_MAX}"
            )
        if not 0 <= self.wait_for_service_seconds <= _WAIT_SECONDS_MAX:
            raise ConfigError(
                f"waitSecondsForService={self.wait_for_service_seconds} must be between 0 and "
                f"{_WAIT_SECONDS_MAX}"
            )
        for key, value in (
            ("serverChannelMaxIdleTimeSeconds", self.idle_seconds),
            ("brokerCountMax", self.brokers_max),
            ("brokerCountPerHostMax", self.brokers_a_host_max),
            ("routeEntryCountMax", self.route_entries_max),
        ):
            if not 0 < value <= _INT_MAX:
                raise ConfigError(f"{key}={value} must be between 1 and {_INT_MAX}")
