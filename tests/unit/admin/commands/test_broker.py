from __future__ import annotations

import json

import pytest

from rocketpost.admin.broker_processes import BrokerProcess, repeat
from rocketpost.admin.commands.cluster import (
    _CLUSTERS,
    _TOTALS,
    cluster_row,
    master_ends,
    total_row,
)
from rocketpost.admin.render import json_text

PROCESS = BrokerProcess("DefaultCluster", "broker-a", 0, "127.0.0.1:34141")
VALUES = {
    "brokerVersionDesc": "V5_3_3",
    "putTps": "0.0 0.04979997012001793 ",
    "getTransferredTps": "0.0 0.04980079681274901 ",
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in ("send", "pull", "ack")},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in ("send", "pull", "ack")},
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "pageCacheLockTimeMills": "0",
    "earliestMessageTimeStamp": "1794784528244",
    "commitLogDiskRatio": "0.15",
    "brokerActive": "true",
    "msgPutTotalYesterdayMorning": "1",
    "msgPutTotalTodayMorning": "10",
    "msgPutTotalTodayNow": "13",
    "msgGetTotalYesterdayMorning": "0",
    "msgGetTotalTodayMorning": "0",
    "msgGetTotalTodayNow": "3",
}
NOW_MS = 1_794_784_528_244 + 72_000


def test_a_broker_is_listed_as_by_the_original() -> None:
    row = cluster_row(PROCESS, VALUES, now_ms=NOW_MS)
    assert _CLUSTERS.text([row]).splitlines() == [
        "#Cluster Name           #Broker Name            #BID  #Addr                  #Version"
        "              #InTPS(LOAD)                   #OutTPS(LOAD)  #Timer(Progress)        "
        "#PCWait(ms)  #Hour         #SPACE    #ACTIVATED  #Role         #Behind(B)",
        "DefaultCluster          broker-a                0     127.0.0.1:34141        V5_3_3  "
        "               0.00(0,0ms)               0.00(0,0ms|0,0ms)  0-0(0.0w, 0.0, 0.0)      "
        "         0  0.02          0.1500          true  MASTER                 0",
    ]


def test_values_that_a_broker_does_not_report_are_not_invented() -> None:
    row = cluster_row(PROCESS, {"brokerActive": "true", "putTps": "many"}, now_ms=NOW_MS)
    cells = _CLUSTERS.cells(row)
    assert cells[5] == "N/A(N/A,N/Ams)"
    assert cells[9] == "N/A"
    assert cells[11] == "true"
    assert _CLUSTERS.cells(cluster_row(PROCESS, {}, now_ms=NOW_MS))[4:] == ["N/A"] * 10


def test_programs_get_numbers_as_numbers() -> None:
    [shown] = json.loads(
        json_text(_CLUSTERS.objects([cluster_row(PROCESS, VALUES, now_ms=NOW_MS)]))
    )
    assert shown["in"] == {"tps": 0.0, "send": {"queueSize": 0, "waitMs": 0}}
    assert shown["out"]["ack"] == {"queueSize": 0, "waitMs": 0}
    assert shown["timer"]["enqueueTps"] == 0.0
    assert (shown["pageCacheWaitMs"], shown["hours"], shown["diskRatio"]) == (0, 0.02, 0.15)
    assert shown["active"] is True
    [unknown] = json.loads(json_text(_CLUSTERS.objects([cluster_row(PROCESS, {}, now_ms=NOW_MS)])))
    assert unknown["in"] is unknown["hours"] is unknown["active"] is unknown["version"] is None


def test_a_broker_without_messages_has_no_age() -> None:
    for earliest in ("-1", "0", ""):
        values = {**VALUES, "earliestMessageTimeStamp": earliest}
        assert cluster_row(PROCESS, values, now_ms=NOW_MS)[9] is None


def test_slaves_are_shown_with_the_bytes_that_they_lack() -> None:
    slave = BrokerProcess("DefaultCluster", "broker-a", 2, "127.0.0.1:34142")
    lagging = {**VALUES, "commitLogMaxOffset": "700"}
    found = [(PROCESS, {**VALUES, "commitLogMaxOffset": "1000"}), (slave, lagging)]
    assert master_ends(found) == {"broker-a": 1000}

    def last_two(process: BrokerProcess, values: dict[str, str], end: int | None) -> list[str]:
        return _CLUSTERS.cells(cluster_row(process, values, now_ms=NOW_MS, master_end=end))[-2:]

    assert last_two(slave, lagging, 1000) == ["SLAVE", "300"]
    assert last_two(slave, lagging, 600) == ["SLAVE", "0"]
    assert last_two(slave, lagging, None) == ["SLAVE", "N/A"]
    sync = {**VALUES, "brokerRole": "SYNC_MASTER"}
    assert last_two(PROCESS, sync, 1000) == ["SYNC_MASTER", "0"]
    assert master_ends([(slave, lagging), (PROCESS, {})]) == {}


def test_totals_are_differences() -> None:
    row = total_row(PROCESS, VALUES, now_ms=NOW_MS)
    assert _TOTALS.text([row]).splitlines() == [
        "#Cluster Name     #Broker Name                       #InTotalYest  #OutTotalYest  "
        "#InTotalToday #OutTotalToday",
        "DefaultCluster    broker-a                                      9              0  "
        "            3              3",
    ]
    assert total_row(PROCESS, {}, now_ms=NOW_MS)[2:] == (None,) * 4
    assert _TOTALS.cells(total_row(PROCESS, {}, now_ms=NOW_MS))[2:] == ["N/A"] * 4


async def test_a_listing_is_repeated_until_it_fails() -> None:
    shown = 0

    async def show() -> None:
        nonlocal shown
        shown += 1
        if shown == 3:
            raise KeyError

    await repeat(None, show)
    assert shown == 1
    with pytest.raises(KeyError):
        await repeat(0.0, show)
    assert shown == 3
