"""Settings of replication: the role of a broker, its HA port, and how a slave follows."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.model.route import MASTER_ID
from rocketpost.server.settings.metrics import MetricsConfig
from rocketpost.server.settings.networks import parse_networks
from rocketpost.settings import option
from rocketpost.transport.entrance import Network

FRAME_BODY_MAX: Final = 4 * 1024 * 1024 - 12
"""Most bytes of log in one frame of the HA stream: RocketMQ's slaves read into 4 MiB."""

_INT_MAX: Final = 2**31 - 1
_REPLICAS_MAX: Final = 64
_PORT_MAX: Final = 65_535
_NEXT_PORT: Final = -1


class BrokerRole(enum.Enum):
    """Role of a broker among its replicas."""

    ASYNC_MASTER = enum.auto()
    SYNC_MASTER = enum.auto()
    SLAVE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(MetricsConfig):
    """Settings of a master, of a slave, and of groups with an acting master.

    ``__post_init__`` fills in the defaults that depend on other settings: ``ha_listen_port`` is
    the port after ``listen_port``, and ``in_sync_replicas`` is 2 for a SYNC_MASTER, else 1.
    """

    broker_id: int = option("brokerId", MASTER_ID, important=True)
    broker_role: BrokerRole = option("brokerRole", BrokerRole.ASYNC_MASTER, important=True)
    listen_port: int = option("listenPort", 10911, important=True)
    ha_listen_port: int = option("haListenPort", _NEXT_PORT, important=True)
    ha_ip: str = option("brokerIP2", "", important=True)
    ha_master_address: str = option("haMasterAddress", "", important=True)
    ha_trusted_networks: str = option("haTrustedNetworks", "")
    """Networks of RocketMQ's brokers, which need neither TLS nor a login at HA ports."""
    ha_heartbeat_ms: int = option("haSendHeartbeatInterval", 5000)
    ha_housekeeping_ms: int = option("haHousekeepingInterval", 20_000)
    ha_batch_bytes: int = option("haTransferBatchSize", 2 * 1024 * 1024, mutable=True)
    ha_gap_bytes_max: int = option("haMaxGapNotInSync", 256 * 1024 * 1024, mutable=True)
    ha_flow_control: bool = option("haFlowControlEnable", False, mutable=True)
    ha_bytes_per_second: int = option("maxHaTransferByteInSecond", 100 * 1024 * 1024, mutable=True)
    sync_from_last_file: bool = option("syncFromLastFile", False)
    slave_timeout_ms: int = option("slaveTimeout", 3000, mutable=True)
    in_sync_replicas: int = option("inSyncReplicas", 0, mutable=True)
    in_sync_replicas_min: int = option("minInSyncReplicas", 1)
    auto_in_sync_replicas: bool = option("enableAutoInSyncReplicas", False)
    total_replicas: int = option("totalReplicas", 1)
    slave_reads: bool = option("slaveReadEnable", False, mutable=True)
    slave_checks_offsets: bool = option("offsetCheckInSlave", False, mutable=True)
    sync_master_flush_offset: bool = option("syncMasterFlushOffsetWhenStartup", False)
    acting_master: bool = option("enableSlaveActingMaster", False)
    skip_pre_online: bool = option("skipPreOnline", False)
    old_name_servers: bool = option("compatibleWithOldNameSrv", True)
    member_poll_ms: int = option("syncBrokerMemberGroupPeriod", 1000)
    broker_heartbeat_ms: int = option("brokerHeartbeatInterval", 1000)
    broker_heartbeat_timeout_ms: int = option("sendHeartbeatTimeoutMillis", 1000)
    broker_inactive_ms: int = option("brokerNotActiveTimeoutMillis", 10_000)
    strict_locks: bool = option("lockInStrictMode", False)

    @property
    def trusted_networks(self) -> tuple[Network, ...]:
        """The networks of brokers that need not log in at HA ports."""
        return parse_networks("haTrustedNetworks", self.ha_trusted_networks)

    @property
    def is_slave(self) -> bool:
        """Whether the broker copies a master."""
        return self.broker_role is BrokerRole.SLAVE

    def check_replication(self) -> None:
        """Fill in defaults that depend on other settings, and check every setting of this class.

        Raises:
            ConfigError: A value cannot be honoured.
        """
        self._check_role()
        assert isinstance(self.trusted_networks, tuple)
        self._resolve_port()
        if self.in_sync_replicas == 0:
            needed = 2 if self.broker_role is BrokerRole.SYNC_MASTER else 1
            object.__setattr__(self, "in_sync_replicas", needed)
        if self.ha_master_address and not _is_address(self.ha_master_address):
            raise ConfigError(
                f"haMasterAddress={self.ha_master_address} must be host:port, the master's "
                "brokerIP2 and haListenPort"
            )
        for key, value, most in (
            ("haSendHeartbeatInterval", self.ha_heartbeat_ms, _INT_MAX),
            ("haHousekeepingInterval", self.ha_housekeeping_ms, _INT_MAX),
            ("haTransferBatchSize", self.ha_batch_bytes, FRAME_BODY_MAX),
            ("haMaxGapNotInSync", self.ha_gap_bytes_max, 2**62),
            ("maxHaTransferByteInSecond", self.ha_bytes_per_second, 2**62),
            ("slaveTimeout", self.slave_timeout_ms, _INT_MAX),
            ("inSyncReplicas", self.in_sync_replicas, _REPLICAS_MAX),
            ("minInSyncReplicas", self.in_sync_replicas_min, _REPLICAS_MAX),
            ("totalReplicas", self.total_replicas, _REPLICAS_MAX),
            ("syncBrokerMemberGroupPeriod", self.member_poll_ms, _INT_MAX),
            ("brokerHeartbeatInterval", self.broker_heartbeat_ms, _INT_MAX),
            ("sendHeartbeatTimeoutMillis", self.broker_heartbeat_timeout_ms, _INT_MAX),
            ("brokerNotActiveTimeoutMillis", self.broker_inactive_ms, _INT_MAX),
        ):
            if not 0 < value <= most:
                raise ConfigError(f"{key}={value} must be between 1 and {most}")
        if self.strict_locks and not self.acting_master:
            raise ConfigError(
                "lockInStrictMode=true needs enableSlaveActingMaster=true: without it this broker "
                "does not know the other members of its group"
            )
        if self.acting_master and self.broker_heartbeat_ms >= self.broker_inactive_ms:
            raise ConfigError(
                f"brokerHeartbeatInterval={self.broker_heartbeat_ms} must be less than "
                f"brokerNotActiveTimeoutMillis={self.broker_inactive_ms}: name servers would "
                "forget this broker between two heartbeats"
            )
        if self.ha_heartbeat_ms >= self.ha_housekeeping_ms:
            raise ConfigError(
                f"haSendHeartbeatInterval={self.ha_heartbeat_ms} must be less than "
                f"haHousekeepingInterval={self.ha_housekeeping_ms}: an idle connection between "
                "master and slave would be closed before a heartbeat is due"
            )

    def _check_role(self) -> None:
        if self.broker_id < 0:
            raise ConfigError(
                f"brokerId={self.broker_id} must be 0 for a master and more for a slave. Members "
                "of a group that elects its leader need none; controller mode, which uses -1, is "
                "not in this version"
            )
        if self.is_slave and self.broker_id == MASTER_ID:
            raise ConfigError(
                "brokerRole=SLAVE needs a brokerId of 1 or more, different for each slave of a "
                "master; 0 is the master"
            )
        if not self.is_slave and self.broker_id != MASTER_ID:
            raise ConfigError(
                f"brokerId={self.broker_id} is the id of a slave, but brokerRole is "
                f"{self.broker_role.name}: set brokerRole=SLAVE, or brokerId=0 for a master"
            )

    def _resolve_port(self) -> None:
        if self.ha_listen_port == _NEXT_PORT:
            following = self.listen_port + 1 if self.listen_port else 0
            object.__setattr__(self, "ha_listen_port", following)
        if not 0 <= self.ha_listen_port <= _PORT_MAX:
            raise ConfigError(f"haListenPort={self.ha_listen_port} is not a port")
        if self.ha_listen_port and self.ha_listen_port == self.listen_port:
            raise ConfigError(
                f"haListenPort={self.ha_listen_port} is also listenPort: slaves need a port of "
                "their own"
            )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) <= _PORT_MAX
