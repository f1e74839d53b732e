from __future__ import annotations

from typing import Any

from admin.samples import make_message
from rocketpost.admin.commands.explain import Explanation, fate_text, members, text
from rocketpost.admin.evidence import Place, log_file, real_topic
from rocketpost.admin.fate import Copy, Fate, Owner, State

PLACE = Place(broker_name="a", address="a:1", position=786, size=99, file=None, indexed=None)


def told(**properties: Any) -> Explanation:
    return Explanation(
        message=make_message(**properties), place=PLACE, delayed_until_ms=None, fates=[]
    )


def test_the_file_follows_from_the_settings() -> None:
    size = {"mappedFileSizeCommitLog": "1000"}
    assert log_file(size, 2500) == "00000000000000002000"
    assert log_file({**size, "storePathRootDir": "/s"}, 5) == "/s/commitlog/00000000000000000000"
    assert log_file({**size, "storePathCommitLog": "/c"}, 5) == "/c/00000000000000000000"
    assert log_file({}, 5) is None
    assert log_file({"mappedFileSizeCommitLog": "0"}, 5) is None


def test_what_a_broker_does_not_tell_is_unknown_here(utc: None) -> None:
    shown = text(told(UNIQ_KEY="U"))
    assert "File:            unknown here" in shown
    assert "Indexed:         unknown here" in shown
    assert "none has offsets or members" in shown
    assert members(told(UNIQ_KEY="U"))["place"] == {
        "brokerName": "a",
        "address": "a:1",
        "commitLogOffset": 786,
        "size": 99,
        "file": None,
        "indexed": None,
    }


def test_a_copy_names_its_origin(utc: None) -> None:
    assert "Copy of:         O in Orders" in text(told(ORIGIN_MESSAGE_ID="O", RETRY_TOPIC="Orders"))


def test_a_delay_names_time_and_topic(utc: None) -> None:
    one = told(REAL_TOPIC="Orders")
    one.delayed_until_ms = 1_000
    assert "1970-01-01 00:00:01,000, for Orders" in text(one)
    assert members(one)["delayedUntil"] == 1_000


def test_a_fate_is_told_line_by_line(utc: None) -> None:
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
    dead = Fate(group="G", state=State.DEAD, reason="why", dead_ms=1_000)
    assert fate_text(dead).splitlines() == [
        "group G: DEAD since 1970-01-01 00:00:01,000: why",
        "    nobody is online",
    ]


def test_the_topic_of_a_waiting_message_is_where_it_goes() -> None:
    assert real_topic(make_message(REAL_TOPIC="X")) == "Demo"
