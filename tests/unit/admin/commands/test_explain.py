from __future__ import annotations

from typing import Any

from admin.samples import make_message
from rocketpost.admin.commands.explain import explanation_members, explanation_text, fate_text
from rocketpost.diagnosis.explanation import Explanation
from rocketpost.diagnosis.fate import Copy, Fate, Owner, State
from rocketpost.diagnosis.message_facts import StoredAt
from rocketpost.diagnosis.replicas import ReplicaCopy

STORED_AT = StoredAt(broker_name="a", address="a:1", position=786, size=99, file=None, indexed=None)


MASTER = ReplicaCopy(broker_id=0, address="a:1", present=True)


def explanation(*replicas: ReplicaCopy, **properties: Any) -> Explanation:
    return Explanation(
        message=make_message(**properties),
        stored_at=STORED_AT,
        replicas=list(replicas or [MASTER]),
        delayed_until_ms=None,
        fates=[],
    )


def test_values_that_a_broker_does_not_report_are_unknown_here(utc: None) -> None:
    shown = explanation_text(explanation(UNIQ_KEY="U"))
    assert "File:            unknown here" in shown
    assert "Indexed:         unknown here" in shown
    assert "none has offsets or members" in shown
    assert explanation_members(explanation(UNIQ_KEY="U"))["place"] == {
        "brokerName": "a",
        "address": "a:1",
        "commitLogOffset": 786,
        "size": 99,
        "file": None,
        "indexed": None,
    }


def test_the_replicas_of_a_broker_are_listed(utc: None) -> None:
    assert "Master" not in explanation_text(explanation())
    slaves = [
        ReplicaCopy(broker_id=1, address="s:1", present=False, reason="there is no message"),
        ReplicaCopy(broker_id=2, address="s:2", present=None, reason="cannot connect"),
    ]
    shown = explanation_text(explanation(MASTER, *slaves)).splitlines()
    assert "Master:          a:1 has it" in shown
    assert "Slave 1:         s:1 does not have it: there is no message" in shown
    assert "Slave 2:         s:2 unknown here: cannot connect" in shown
    assert explanation_members(explanation(*slaves))["replicas"] == [
        {"brokerId": 1, "address": "s:1", "present": False, "reason": "there is no message"},
        {"brokerId": 2, "address": "s:2", "present": None, "reason": "cannot connect"},
    ]


def test_a_copy_names_its_origin(utc: None) -> None:
    assert "Copy of:         O in Orders" in explanation_text(
        explanation(ORIGIN_MESSAGE_ID="O", RETRY_TOPIC="Orders")
    )


def test_a_delay_names_time_and_topic(utc: None) -> None:
    one = explanation(REAL_TOPIC="Orders")
    one.delayed_until_ms = 1_000
    assert "1970-01-01 00:00:01,000, for Orders" in explanation_text(one)
    assert explanation_members(one)["delayedUntil"] == 1_000


def test_a_fate_is_shown_line_by_line(utc: None) -> None:
    copy = Copy(
        topic="%RETRY%G",
        broker_name="a",
        queue_id=0,
        queue_offset=3,
        offset_id="X",
        reconsume_times=1,
        store_ms=5,
    )
    owner = Owner(
        client_id="c", locked=True, lock_ms=2_000, cached_first=1, cached_last=4, cached_count=3
    )
    fate = Fate(
        group="G",
        state=State.RETRYING,
        reason="why",
        members=2,
        until_ms=1_000,
        copy=copy,
        owners=(owner,),
        unknown=("what (reason)",),
    )
    assert fate_text(fate).splitlines() == [
        "group G: RETRYING until 1970-01-01 00:00:01,000: why",
        "    copy X in %RETRY%G, a, queue 0, offset 3",
        "    2 members online",
        "    queue is with c, which holds offsets 1 to 4; locked by it, "
        "renewed 1970-01-01 00:00:02,000",
        "    unknown here: what (reason)",
    ]
    alone = Fate(group="G", state=State.BEHIND, reason="why", members=1)
    assert fate_text(alone).splitlines()[1] == "    1 member online"
    dead = Fate(group="G", state=State.DEAD, reason="why", dead_ms=1_000)
    assert fate_text(dead).splitlines() == [
        "group G: DEAD since 1970-01-01 00:00:01,000: why",
        "    nobody is online",
    ]
