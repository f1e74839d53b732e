"""Settings of roles and of the HA stream."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import BrokerConfig, broker_settings, setting_notes
from rocketpost.server.settings.replication import BrokerRole


def settings(**values: object) -> BrokerConfig:
    return broker_settings({key: str(value) for key, value in values.items()})[0]


def test_the_three_roles() -> None:
    assert settings().broker_role is BrokerRole.ASYNC_MASTER
    assert settings(brokerRole="sync_master").broker_role is BrokerRole.SYNC_MASTER
    slave = settings(brokerRole="SLAVE", brokerId=2)
    assert slave.is_slave
    assert slave.broker_id == 2


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"brokerRole": "SLAVE"}, "needs a brokerId of 1 or more"),
        ({"brokerRole": "SLAVE", "brokerId": 0}, "needs a brokerId of 1 or more"),
        ({"brokerId": 1}, "set brokerRole=SLAVE, or brokerId=0"),
        ({"brokerRole": "SYNC_MASTER", "brokerId": 3}, "is the id of a slave"),
        ({"brokerId": -1}, "must be 0 for a master"),
        ({"brokerRole": "ASYNC_MASTRE"}, "it must be ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ({"haListenPort": 70000}, "haListenPort=70000 is not a port"),
        ({"listenPort": 5000, "haListenPort": 5000}, "slaves need a port of their own"),
        ({"listenPort": 65535}, "haListenPort=65536 is not a port"),
        ({"haMasterAddress": "10.0.0.1"}, "must be host:port"),
        ({"haMasterAddress": "10.0.0.1:0"}, "must be host:port"),
        ({"haTransferBatchSize": 4 * 1024 * 1024}, "between 1 and 4194292"),
        ({"haSendHeartbeatInterval": 20000}, "must be less than haHousekeepingInterval=20000"),
        ({"inSyncReplicas": -1}, "inSyncReplicas=-1 must be between 1 and 64"),
        ({"minInSyncReplicas": 0}, "minInSyncReplicas=0 must be between 1 and 64"),
        ({"slaveTimeout": 0}, "slaveTimeout=0 must be between 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        settings(**values)


def test_slaves_connect_at_the_next_port_unless_the_file_says_otherwise() -> None:
    assert settings().ha_listen_port == 10912
    assert settings(listenPort=20000).ha_listen_port == 20001
    assert settings(listenPort=0).ha_listen_port == 0
    assert settings(haListenPort=0).ha_listen_port == 0
    assert settings(haListenPort=7000).ha_listen_port == 7000


def test_a_sync_master_waits_for_one_slave_by_default() -> None:
    assert settings().in_sync_replicas == 1
    assert settings(brokerRole="SYNC_MASTER").in_sync_replicas == 2
    assert settings(brokerRole="SYNC_MASTER", inSyncReplicas=1).in_sync_replicas == 1
    assert settings(brokerRole="SYNC_MASTER", inSyncReplicas=3).in_sync_replicas == 3


def test_the_address_of_a_master_means_nothing_to_a_master() -> None:
    [note] = setting_notes({"haMasterAddress": "10.0.0.1:10912"})
    assert note == "haMasterAddress has no effect if brokerRole=ASYNC_MASTER"
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "10.0.0.1:10912"}
    assert setting_notes(slave) == []
