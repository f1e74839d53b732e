"""The recent history of a group: who held which queue when, and events that explain its lag."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from rocketpost.console.actions.audit_log import AuditLine
from rocketpost.console.collect.holdings import MemberChange
from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot
from rocketpost.console.timelines import Event, Timeline, draw_timeline
from rocketpost.console.visit import Visit

_OFFSET_ACTS: Final = ("reset-offsets", "set-offsets", "copy-offsets")
_CHANGES_SHOWN: Final = 30


class GroupHistory(msgspec.Struct, kw_only=True, rename="camel"):
    """Changes of a group that the console has seen since it was started."""

    timeline: Timeline | None
    flapping: list[str]
    changes: list[MemberChange]
    """Members that joined or left, newest first."""
    events: list[Event]


def read_history(visit: Visit, snapshot: Snapshot, group: GroupView) -> GroupHistory:
    """Return the history of a group."""
    now_ms = time.time_ns() // 1_000_000
    found = visit.cluster.survey.holdings.find(group.name)
    changes = list(found.changes) if found is not None else []
    flapping = found.find_flapping(now_ms) if found is not None else []
    events = [Event(each.at_ms, each.kind, each.client) for each in changes]
    events += find_restarts(snapshot.brokers, group)
    events += find_offset_acts(visit.services.audit.newest(200), group.name)
    return GroupHistory(
        timeline=draw_timeline(found.queues, now_ms=now_ms, flapping=flapping) if found else None,
        flapping=flapping,
        changes=changes[::-1][:_CHANGES_SHOWN],
        events=sorted(events),
    )


def find_restarts(brokers: Iterable[BrokerView], group: GroupView) -> list[Event]:
    """Return the starts of the brokers of a group. Pure."""
    return [
        Event(each.started_ms, "started", each.name)
        for each in brokers
        if each.name in group.brokers and each.is_master and each.started_ms
    ]


def find_offset_acts(lines: Iterable[AuditLine], group: str) -> list[Event]:
    """Return the changes of a group's offsets that users of the console made. Pure."""
    return [
        Event(each.at_ms, "offsets", each.user)
        for each in lines
        if each.act in _OFFSET_ACTS and group in each.what.split()
    ]
