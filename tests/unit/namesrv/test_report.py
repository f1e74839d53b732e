"""The names that a name server accepts: those that brokers really create, and no others."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import InvalidParameter
from rocketpost.model.route import QueueData
from rocketpost.model.topic import TopicConfig
from rocketpost.namesrv.report import (
    BrokerReport,
    check_address,
    check_name,
    check_queues,
    check_report,
)

from .reports import identity, report, topics

MAPPING = QueueMapping(bname="broker-a", curr_id_map={0: 0}, topic="TopicA", total_queues=1)


def mapped(**changes: object) -> BrokerReport:
    return report(mappings={"TopicA": msgspec.structs.replace(MAPPING, **changes)})


@pytest.mark.parametrize(
    "name",
    [
        "TopicA",
        "%RETRY%group",
        "host.example.com",
        "%RETRY%group+topic",
        "rmq_sys_SYNC_BROKER_MEMBER_" + "b" * 120,
    ],
)
def test_names_that_brokers_make(name: str) -> None:
    check_name(name, "topic")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("x" * 256, "256 characters"),
        ("a/b", "characters other"),
        ("caf\xe9", "characters other"),
        ("a\nb", "characters other"),
    ],
)
def test_names_that_nobody_makes(name: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        check_name(name, "topic")


@pytest.mark.parametrize("address", ["10.0.0.1:10911", "broker.local:1", "[fe80::1%eth0]:65535"])
def test_addresses(address: str) -> None:
    check_address(address, "address")


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "h:1\n", "x" * 300 + ":1"],
)
def test_text_that_is_no_address(address: str) -> None:
    with pytest.raises(InvalidParameter, match="host:port"):
        check_address(address, "address")


def test_a_whole_report() -> None:
    check_report(
        report(
            filters=["10.0.0.9:1"],
            mappings={"TopicA": MAPPING},
            ha_address="10.0.0.1:10912",
            zone="z1",
        )
    )


@pytest.mark.parametrize(
    "bad",
    [
        report(identity(cluster="a/b")),
        report(identity(name="")),
        report(identity(address="nowhere")),
        report(identity(id=-1)),
        report(identity(id=2**63)),
        report(ha_address="nowhere"),
        report(zone="a b"),
        report(filters=["10.0.0.9:1"] * 65),
        report(filters=["nowhere"]),
        report(table=topics("TopicA", "../../etc")),
        report(table={"TopicA": TopicConfig(topic_name="TopicB")}),
        report(table=topics("TopicA", "B", read_queue_nums=-1)),
        report(table=topics("TopicA", "B", write_queue_nums=65_537)),
        report(table=topics("TopicA", "B", perm=16)),
        report(table=topics("TopicA", "B", topic_sys_flag=2**31)),
        report(mappings={"a/b": MAPPING}),
        mapped(topic="TopicB"),
        mapped(bname="broker-b"),
        mapped(scope="s" * 256),
        mapped(epoch=2**63),
        mapped(curr_id_map={2**63: 0}),
    ],
)
def test_one_bad_thing_is_enough(bad: BrokerReport) -> None:
    with pytest.raises(InvalidParameter):
        check_report(bad)


def test_queues_of_a_single_topic() -> None:
    check_queues("T", QueueData(broker_name="b", read_queue_nums=65_536))
    with pytest.raises(InvalidParameter, match="perm 99"):
        check_queues("T", QueueData(broker_name="b", perm=99))
