"""What became of a message in a group, judged from what brokers and consumers tell. Pure.

A group passes the message in its queue, or sends it back: then a copy waits among the delayed
messages, comes again in the group's retry topic, and ends in its dead-letter topic after the last
round. A message that was popped and not acknowledged leaves copies of the same kind in the group's
retry topic for its topic. The youngest copy tells how things stand; without one the offset does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from rocketpost.errors import FilterError
from rocketpost.filter import compile_filter
from rocketpost.model.group import Subscription


class State(enum.Enum):
    """How things stand with a message in a group."""

    CONSUMED = "CONSUMED"
    FILTERED = "FILTERED"
    IN_FLIGHT = "IN_FLIGHT"
    BEHIND = "BEHIND"
    RETRYING = "RETRYING"
    DEAD = "DEAD"
    DELAYED = "DELAYED"
    BROADCAST = "BROADCAST"
    NOT_STARTED = "NOT_STARTED"
    UNKNOWN = "UNKNOWN"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group stands in a queue; None is not known, or there is no offset."""

    committed: int | None = None
    pulled: int | None = None
    popped_until_ms: int | None = None
    """Until when the message itself is in the hands of somebody who popped it."""


class Copy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A copy that was made when the group sent the message back."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    offset_id: str = msgspec.field(name="offsetMsgId")
    reconsume_times: int
    store_ms: int = msgspec.field(name="storeTimestamp")
    due_ms: int | None = msgspec.field(name="dueTimestamp", default=None)
    """When it comes, if it waits among the delayed messages."""


class Owner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A member that has the queue, by its own account."""

    client_id: str
    locked: bool = False
    lock_ms: int = msgspec.field(name="lockTimestamp", default=0)
    cached_first: int = 0
    cached_last: int = 0
    cached_count: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a message and a group."""

    group: str
    tag: str | None
    queue_offset: int
    properties: Mapping[str, str] = {}
    members: int = 0
    broadcast: bool = False
    subscription: Subscription | None = None
    """What the members want of the topic; None if nobody is online or they do not want it."""
    reading: Reading = Reading()
    waiting: tuple[Copy, ...] = ()
    retries: tuple[tuple[Copy, Reading], ...] = ()
    dead: tuple[Copy, ...] = ()
    retry_max: int | None = None
    owners: tuple[Owner, ...] = ()
    delayed_until_ms: int | None = None
    unknown: tuple[str, ...] = ()
    """What could not be found out."""


class Fate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a message in a group."""

    group: str
    state: State
    reason: str
    members: int = 0
    consumer_offset: int | None = None
    pull_offset: int | None = None
    behind: int | None = None
    filter: str | None = None
    retry: int | None = None
    retry_max: int | None = None
    until_ms: int | None = msgspec.field(name="untilTimestamp", default=None)
    dead_ms: int | None = msgspec.field(name="deadSince", default=None)
    copy: Copy | None = None
    owners: tuple[Owner, ...] = ()
    unknown: tuple[str, ...] = ()


def judge(facts: Facts, *, now_ms: int) -> Fate:
    """Return what became of the message."""
    fate = Fate(
        group=facts.group,
        state=State.UNKNOWN,
        reason="",
        members=facts.members,
        consumer_offset=facts.reading.committed,
        pull_offset=facts.reading.pulled,
        retry_max=facts.retry_max,
        owners=facts.owners,
        unknown=facts.unknown,
    )
    if facts.delayed_until_ms is not None:
        reason = "not delivered yet"
        if facts.delayed_until_ms <= now_ms:
            reason = "due; its delivered copy has the same unique id"
        return _with(fate, State.DELAYED, reason, until_ms=facts.delayed_until_ms)
    if facts.broadcast:
        return _with(fate, State.BROADCAST, "every member keeps its own offset; unknown here")
    return _by_copies(fate, facts, now_ms) or _by_offset(fate, facts)


def rule_of(facts: Facts) -> str | None:
    """Return the rule of the group's subscription that keeps the message out; None if none does."""
    wanted = facts.subscription
    if wanted is None or wanted.takes_all:
        return None
    if not wanted.is_tag:
        return wanted.sub_string if lets_through(wanted, facts.properties) is False else None
    if facts.tag in (wanted.tags_set or ()):
        return None
    return wanted.sub_string


def lets_through(wanted: Subscription, properties: Mapping[str, str]) -> bool | None:
    """Return whether an expression lets a message through; None if only a broker can tell."""
    try:
        return compile_filter(wanted.sub_string).matches(properties)
    except FilterError:
        return None  # wrong, or it names a filter that a broker keeps


def _by_copies(fate: Fate, facts: Facts, now_ms: int) -> Fate | None:
    if facts.dead:
        copy = max(facts.dead, key=lambda each: each.store_ms)
        reason = f"given up after {copy.reconsume_times} deliveries"
        return _with(fate, State.DEAD, reason, dead_ms=copy.store_ms, copy=copy)
    last = max((copy for copy, _ in facts.retries), key=_round, default=None)
    waits = max(facts.waiting, key=_round, default=None)
    limit = "?" if facts.retry_max is None else facts.retry_max
    if waits is not None and (last is None or _round(waits) > _round(last)):
        late = waits.due_ms is not None and waits.due_ms <= now_ms
        return _with(
            fate,
            State.RETRYING,
            f"retry {waits.reconsume_times} of {limit} "
            + ("is due and about to be delivered" if late else "waits until it is due"),
            retry=waits.reconsume_times,
            until_ms=waits.due_ms,
            copy=waits,
        )
    if last is None:
        return None
    reading = next(reading for copy, reading in facts.retries if copy is last)
    state, where = _stands(reading, last.queue_offset, online=facts.members > 0)
    if state is State.CONSUMED:
        reason = f"done with retry {last.reconsume_times} of {limit}"
    else:
        state = State.IN_FLIGHT if state is State.IN_FLIGHT else State.RETRYING
        reason = f"retry {last.reconsume_times} of {limit} is in {last.topic}: {where}"
    until_ms = reading.popped_until_ms
    return _with(fate, state, reason, retry=last.reconsume_times, copy=last, until_ms=until_ms)


def _by_offset(fate: Fate, facts: Facts) -> Fate:
    state, reason = _stands(facts.reading, facts.queue_offset, online=facts.members > 0)
    behind = None
    if state is State.BEHIND:
        assert facts.reading.committed is not None
        behind = facts.queue_offset - facts.reading.committed
    rule = rule_of(facts)
    if rule is not None:
        tag = f"its tag {facts.tag!r} is" if facts.tag else "it has no tag and is"
        told = f"{tag} not among {rule!r}"
        if facts.subscription is not None and not facts.subscription.is_tag:
            told = f"its properties do not match {rule!r}"
        if state in (State.CONSUMED, State.IN_FLIGHT):
            return _with(fate, State.FILTERED, told, filter=rule)
        return _with(fate, state, f"{reason}; {told}", filter=rule, behind=behind)
    if facts.reading.popped_until_ms is not None:
        return _with(fate, state, reason, until_ms=facts.reading.popped_until_ms)
    wanted = facts.subscription
    if wanted is not None and not wanted.is_tag and lets_through(wanted, facts.properties) is None:
        expression = wanted.sub_string
        return _with(
            fate,
            state,
            f"{reason}; whether {expression!r} lets it through is unknown here",
            filter=expression,
            behind=behind,
        )
    if state is State.CONSUMED and facts.members == 0:
        reason += "; nobody is online to tell a filter"
    return _with(fate, state, reason, behind=behind)


def _stands(reading: Reading, offset: int, *, online: bool) -> tuple[State, str]:
    """Say where a group stands by its offset in the queue of the message or of its copy."""
    committed = reading.committed
    pulled = reading.pulled is not None and reading.pulled > offset
    if reading.popped_until_ms is not None:
        return State.IN_FLIGHT, "popped; it comes again then unless it is acknowledged"
    if committed is not None and committed > offset:
        return State.CONSUMED, f"the group has come to offset {committed}"
    if pulled and online:
        below = "nothing" if committed is None else f"only what is below {committed}"
        return State.IN_FLIGHT, f"pulled, but {below} is committed"
    lost = "; it was pulled, but nobody is online" if pulled else ""
    if committed is None:
        return State.NOT_STARTED, f"the group has no offset in this queue{lost}"
    count = offset - committed
    before = f"{count} messages come before it" if count else "it is the next one"
    return State.BEHIND, f"the group stands at offset {committed}, {before}{lost}"


def _round(copy: Copy) -> int:
    return copy.reconsume_times


def _with(fate: Fate, state: State, reason: str, **more: object) -> Fate:
    return msgspec.structs.replace(fate, state=state, reason=reason, **more)
