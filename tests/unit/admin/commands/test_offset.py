from __future__ import annotations

import pytest

from rocketpost.admin.command import Failure
from rocketpost.admin.commands.offset import _OFFSETS, broker_name_at
from rocketpost.model.route import BrokerData, TopicRoute

ROUTE = TopicRoute(broker_datas=[BrokerData(broker_addrs={0: "h:1", 1: "h:2"}, broker_name="b")])


def test_offsets_are_listed_as_by_the_original() -> None:
    assert _OFFSETS.text([("broker-a", 1, 4)]).splitlines() == [
        "#brokerName                               #queueId                                  "
        "#offset                                 ",
        "broker-a                                  1                                         "
        "4                                       ",
    ]


def test_a_broker_is_known_by_any_of_its_addresses() -> None:
    assert broker_name_at(ROUTE, "h:1", "T") == broker_name_at(ROUTE, "h:2", "T") == "b"
    with pytest.raises(Failure, match="T has no broker at h:3"):
        broker_name_at(ROUTE, "h:3", "T")
