from __future__ import annotations

import pytest

from rocketpost.admin.commands.consumer import (
    _GROUPS,
    _PROGRESS,
    _PROGRESS_CLIENTS,
    connections_text,
    progress_rows,
)
from rocketpost.codec.bodies.client import ConnectionData, ConsumerConnections
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue

QUEUES = [MessageQueue("broker-a", queue_id, "Demo") for queue_id in (1, 0)]
STATE = ConsumeState(
    queues={
        QUEUES[0]: QueueProgress(
            broker_offset=6, consumer_offset=4, pull_offset=5, last_timestamp=1_794_784_620_000
        ),
        QUEUES[1]: QueueProgress(),
    }
)


@pytest.mark.usefixtures("utc")
def test_progress_is_shown_as_by_the_original() -> None:
    assert _PROGRESS.text(progress_rows(STATE)).splitlines() == [
        "#Topic                                                            "
        "#Broker Name                      #QID  #Broker Offset        #Consumer Offset      "
        "#Diff                #Inflight            #LastTime",
        "Demo                                                              "
        "broker-a                          0     0                     0                     "
        "0                    0                    N/A",
        "Demo                                                              "
        "broker-a                          1     6                     4                     "
        "2                    1                    2026-11-15 23:17:00",
    ]


def test_progress_with_the_clients_that_have_the_queues() -> None:
    rows = progress_rows(STATE, {QUEUES[0]: "10.0.0.1"})
    lines = _PROGRESS_CLIENTS.text(rows).splitlines()
    assert lines[0].split()[6:8] == ["#Consumer", "Offset"]
    assert [line.split()[5] for line in lines[1:]] == ["N/A", "10.0.0.1"]


def test_groups_are_listed_as_by_the_original() -> None:
    rows = [
        ("demo-group", 1, "V5_3_3", "PUSH", "CLUSTERING", 0.9, 0),
        ("gone", 0, None, "", "", 0.0, 10),
    ]
    assert _GROUPS.text(rows).splitlines() == [
        "#Group                                                            #Count  #Version"
        "                 #Type  #Model          #TPS     #Diff Total",
        "demo-group                                                        1       V5_3_3  "
        "                 PUSH   CLUSTERING      0        0",
        "gone                                                              0       OFFLINE "
        "                                        0        10",
    ]


def test_connections_are_shown_as_by_the_original() -> None:
    connections = ConsumerConnections(
        connection_set=[
            ConnectionData(
                client_id="192.0.2.2@351#3259655556208",
                client_addr="127.0.0.1:46806",
                language="JAVA",
                version=479,
            )
        ],
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_table={
            "Demo": Subscription(topic="Demo", sub_string="A || B"),
            "%RETRY%java-group": Subscription(topic="%RETRY%java-group"),
        },
    )
    assert connections_text(connections).splitlines() == [
        "#ClientId                            #ClientAddr            #Language  #Version",
        "192.0.2.2@351#3259655556208          127.0.0.1:46806        JAVA       V5_3_3",
        "",
        "Below is subscription:",
        "#Topic               #SubExpression",
        "%RETRY%java-group    *",
        "Demo                 A || B",
        "",
        "ConsumeType: CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    ]
