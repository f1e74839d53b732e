from __future__ import annotations

from rocketpost.admin.commands.topic_view import route_members, route_table
from rocketpost.model.route import BrokerData, QueueData, TopicRoute

ROUTE = TopicRoute(
    broker_datas=[
        BrokerData(
            broker_addrs={0: "127.0.0.1:34141"}, broker_name="broker-a", cluster="DefaultCluster"
        )
    ],
    queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4)],
)


def test_a_route_as_a_table_is_that_of_the_original() -> None:
    heading, row, line, total = route_table(ROUTE).splitlines()
    assert heading == (
        "#ClusterName                                  #BrokerName                      "
        "#BrokerAddrs                                       #ReadQueue #WriteQueue #Perm"
    )
    assert row == (
        "DefaultCluster                                broker-a                         "
        "{0=127.0.0.1:34141}                                4          4           6    "
    )
    assert line == "-" * 158
    assert total == (
        "Total:                                        1                                "
        "                                                   4          4                "
    )


def test_a_broker_without_addresses_still_has_a_row() -> None:
    route = TopicRoute(queue_datas=[QueueData(broker_name="gone", read_queue_nums=2)])
    assert route_table(route).splitlines()[1].split() == ["gone", "{}", "2", "0", "6"]


def test_members_of_a_route_stand_in_javas_order_and_empty_ones_stay() -> None:
    members = route_members(ROUTE)
    assert list(members) == ["brokerDatas", "filterServerTable", "queueDatas"]
    assert members["filterServerTable"] == {}
    ordered = TopicRoute(order_topic_conf="broker-a:4")
    assert list(route_members(ordered)) == [
        "brokerDatas",
        "filterServerTable",
        "orderTopicConf",
        "queueDatas",
    ]
