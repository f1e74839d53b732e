"""Reports of made-up brokers."""

from __future__ import annotations

from rocketpost.codec.bodies.registration import RegisteredTopics, RegistrationBody
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.namesrv.report import BrokerIdentity, BrokerReport


def identity(
    name: str = "broker-a", id: int = 0, address: str = "10.0.0.1:10911", cluster: str = "C"
) -> BrokerIdentity:
    return BrokerIdentity(cluster, name, id, address)


def topics(*names: str, **overrides: int) -> dict[str, TopicConfig]:
    sizes = {"read_queue_nums": 4, "write_queue_nums": 4, **overrides}
    return {name: TopicConfig(topic_name=name, **sizes) for name in names}


def report(
    who: BrokerIdentity | None = None,
    table: dict[str, TopicConfig] | None = None,
    *,
    counter: int = 1,
    state: int = 0,
    filters: list[str] | None = None,
    mappings: dict[str, QueueMapping] | None = None,
    ha_address: str = "",
    zone: str | None = None,
    timeout_ms: int | None = None,
    acting_master: bool | None = None,
) -> BrokerReport:
    registration = RegistrationBody(
        filter_server_list=filters or [],
        topic_config_serialize_wrapper=RegisteredTopics(
            data_version=DataVersion(counter, state, 1_700_000_000_000),
            topic_config_table=topics("TopicA", "TopicB") if table is None else table,
            topic_queue_mapping_info_map=mappings or {},
        ),
    )
    return BrokerReport(
        identity=who or identity(),
        ha_address=ha_address,
        zone=zone,
        timeout_ms=timeout_ms,
        acting_master=acting_master,
        registration=registration,
    )
