from __future__ import annotations

import pytest

from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.diagnosis.running_info import RunningInfo
from rocketpost.diagnosis.standstill import find_waiting_queues
from rocketpost.model.route import MessageQueue

NOW = 1_000_000
QUEUE = MessageQueue("a", 0, "T")
BEHIND = QueueProgress(broker_offset=9, consumer_offset=4)


def why(infos: dict[str, RunningInfo], progress: QueueProgress = BEHIND) -> str:
    [row] = find_waiting_queues(ConsumeState(queues={QUEUE: progress}), infos, now_ms=NOW)
    assert row[:3] == ("T", "a", 0)
    return str(row[4])


def member(orderly: bool = False, **values: object) -> RunningInfo:
    fresh = {"lastPullTimestamp": NOW, "lastConsumeTimestamp": NOW, "cachedMsgCount": 0}
    return RunningInfo(
        properties={"PROP_CONSUMEORDERLY": "true" if orderly else "false"},
        queues={QUEUE: fresh | values},
    )


def test_only_queues_where_something_waits_are_listed() -> None:
    done = ConsumeState(queues={QUEUE: QueueProgress(broker_offset=9, consumer_offset=9)})
    assert find_waiting_queues(done, {}, now_ms=NOW) == []
    beyond = QueueProgress(broker_offset=3, consumer_offset=9, standing="its offset 9 is beyond")
    assert why({}, beyond) == "its offset 9 is beyond"


def test_the_owner_knows_best_then_the_broker() -> None:
    seen = QueueProgress(broker_offset=9, consumer_offset=4, standing="seen from outside")
    assert why({"me": member(standing="it is paused, for 3 s")}, seen) == (
        "me: it is paused, for 3 s"
    )
    assert why({"me": member(standing="")}, seen) == "seen from outside"
    assert why({"me": member()}) == "it moves"
    assert why({}) == "no member is online"
    assert why({"me": RunningInfo(), "you": RunningInfo()}) == "none of 2 members has the queue"
    assert why({"me": member(), "you": member()}) == "2 members have the queue"
    popping = RunningInfo(properties={"PROP_CONSUME_TYPE": "CONSUME_POP"})
    assert why({"me": popping, "you": popping}) == "it moves"


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (member(orderly=True, locked=False), "cannot lock it, last had it never"),
        (
            member(orderly=True, locked=False, lastLockTimestamp=NOW - 7000),
            "cannot lock it, last had it 7 s ago",
        ),
        (
            member(orderly=True, locked=True, droped=True, tryUnlockTimes=3),
            "tried 3 times to unlock it",
        ),
        (
            member(cachedMsgCount=5, cachedMsgMinOffset=4, lastConsumeTimestamp=NOW - 61_000),
            "holds 5 messages from offset 4 and finished one last 61 s ago",
        ),
        (member(lastPullTimestamp=NOW - 121_000), "pulled it last 121 s ago"),
    ],
)
def test_of_a_java_member_it_is_read_from_times_and_counts(info: RunningInfo, text: str) -> None:
    assert why({"java": info}) == f"java: {text}"
