"""The fate of a message in a consumer group, judged from collected facts. Pure.

A group passes the message in its queue, or sends it back. A message that was sent back has copies:
first one among the delayed messages, then one in the group's retry topic, and after the last retry
one in its dead-letter topic. A message that was popped and not acknowledged has copies in the
group's retry topic for its topic. The newest copy decides; without a copy, the group's offset does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from rocketpost.errors import FilterError
from rocketpost.filter import compile_filter
from rocketpost.model.group import Subscription


class State(enum.Enum):
    """The state of a message in a group."""

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


class GroupOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a group in a queue; None if unknown or never stored."""

    committed: int | None = None
    pulled: int | None = None
    popped_until_ms: int | None = None
    """The end of the invisible time, if a consumer has popped the message."""


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
    """When it is delivered, if it is among the delayed messages."""


class Owner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A member that reports to have the queue."""

    client_id: str
    locked: bool = False
    lock_ms: int = msgspec.field(name="lockTimestamp", default=0)
    cached_first: int = 0
    cached_last: int = 0
    cached_count: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a message and a group."""

    group: str
    tag: str | None
    queue_offset: int
    properties: Mapping[str, str] = {}
    members: int = 0
    broadcast: bool = False
    subscription: Subscription | None = None
    """The members' subscription to the topic; None without members or without a subscription."""
    offsets: GroupOffsets = GroupOffsets()
    waiting: tuple[Copy, ...] = ()
    retries: tuple[tuple[Copy, GroupOffsets], ...] = ()
    dead: tuple[Copy, ...] = ()
    retry_max: int | None = None
    owners: tuple[Owner, ...] = ()
    delayed_until_ms: int | None = None
    unknown: tuple[str, ...] = ()
    """Questions that were not answered."""


class Fate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fate of a message in a group."""

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


def judge_fate(facts: Facts, *, now_ms: int) -> Fate:
    """Return the fate of the message."""
    fate = Fate(
        group=facts.group,
        state=State.UNKNOWN,
        reason="",
        members=facts.members,
        consumer_offset=facts.offsets.committed,
        pull_offset=facts.offsets.pulled,
        retry_max=facts.retry_max,
        owners=facts.owners,
        unknown=facts.unknown,
    )
    if facts.delayed_until_ms is not None:
        reason = "not delivered yet"
        if facts.delayed_until_ms <= now_ms:
            reason = "due; its delivered copy has the same unique id"
        return _change(fate, State.DELAYED, reason, until_ms=facts.delayed_until_ms)
    if facts.broadcast:
        return _change(fate, State.BROADCAST, "every member keeps its own offset; unknown here")
    return _judge_by_copies(fate, facts, now_ms) or _judge_by_offset(fate, facts)


def find_rejecting_filter(facts: Facts) -> str | None:
    """Return the filter of the group's subscription if it rejects the message, else None."""
    subscription = facts.subscription
    if subscription is None or subscription.takes_all:
        return None
    if not subscription.is_tag:
        rejected = filter_accepts(subscription, facts.properties) is False
        return subscription.sub_string if rejected else None
    if facts.tag in (subscription.tags_set or ()):
        return None
    return subscription.sub_string


def filter_accepts(subscription: Subscription, properties: Mapping[str, str]) -> bool | None:
    """Return whether an expression accepts a message; None if only a broker can evaluate it."""
    try:
        return compile_filter(subscription.sub_string).matches(properties)
    except FilterError:
        return None  # not valid, or it names a filter that is stored at a broker


def _deliveries(count: int) -> str:
    return "delivery" if count == 1 else "deliveries"


def _judge_by_copies(fate: Fate, facts: Facts, now_ms: int) -> Fate | None:
    if facts.dead:
        copy = max(facts.dead, key=lambda each: each.store_ms)
        reason = f"given up after {copy.reconsume_times} {_deliveries(copy.reconsume_times)}"
        return _change(fate, State.DEAD, reason, dead_ms=copy.store_ms, copy=copy)
    last = max((copy for copy, _ in facts.retries), key=_retry_number, default=None)
    waits = max(facts.waiting, key=_retry_number, default=None)
    limit = "?" if facts.retry_max is None else facts.retry_max
    if waits is not None and (last is None or _retry_number(waits) > _retry_number(last)):
        late = waits.due_ms is not None and waits.due_ms <= now_ms
        return _change(
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
    offsets = next(offsets for copy, offsets in facts.retries if copy is last)
    state, where = _judge_offsets(offsets, last.queue_offset, online=facts.members > 0)
    if state is State.CONSUMED:
        reason = f"done with retry {last.reconsume_times} of {limit}"
    else:
        state = State.IN_FLIGHT if state is State.IN_FLIGHT else State.RETRYING
        reason = f"retry {last.reconsume_times} of {limit} is in {last.topic}: {where}"
    until_ms = offsets.popped_until_ms
    return _change(fate, state, reason, retry=last.reconsume_times, copy=last, until_ms=until_ms)


def _judge_by_offset(fate: Fate, facts: Facts) -> Fate:
    state, reason = _judge_offsets(facts.offsets, facts.queue_offset, online=facts.members > 0)
    behind = None
    if state is State.BEHIND:
        assert facts.offsets.committed is not None
        behind = facts.queue_offset - facts.offsets.committed
    rejecting = find_rejecting_filter(facts)
    if rejecting is not None:
        tag = f"its tag {facts.tag!r} is" if facts.tag else "it has no tag and is"
        why = f"{tag} not among {rejecting!r}"
        if facts.subscription is not None and not facts.subscription.is_tag:
            why = f"its properties do not match {rejecting!r}"
        if state in (State.CONSUMED, State.IN_FLIGHT):
            return _change(fate, State.FILTERED, why, filter=rejecting)
        return _change(fate, state, f"{reason}; {why}", filter=rejecting, behind=behind)
    if facts.offsets.popped_until_ms is not None:
        return _change(fate, state, reason, until_ms=facts.offsets.popped_until_ms)
    wanted = facts.subscription
    if wanted is not None and not wanted.is_tag:
        expression = wanted.sub_string
        if filter_accepts(wanted, facts.properties) is None:
            reason = f"{reason}; whether {expression!r} lets it through is unknown here"
            return _change(fate, state, reason, filter=expression, behind=behind)
    if state is State.CONSUMED and facts.members == 0:
        reason += "; nobody is online, so the filter is unknown"
    return _change(fate, state, reason, behind=behind)


def _judge_offsets(offsets: GroupOffsets, offset: int, *, online: bool) -> tuple[State, str]:
    """Compare a group's offsets with the offset of the message or its copy in the same queue."""
    committed = offsets.committed
    pulled = offsets.pulled is not None and offsets.pulled > offset
    if offsets.popped_until_ms is not None:
        return State.IN_FLIGHT, "popped; delivered again then unless it is acknowledged"
    if committed is not None and committed > offset:
        return State.CONSUMED, f"the offset of the group is {committed}"
    if pulled and online:
        done = "nothing is" if committed is None else f"only offsets below {committed} are"
        return State.IN_FLIGHT, f"pulled, but {done} committed"
    lost = "; it was pulled, but nobody is online" if pulled else ""
    if committed is None:
        return State.NOT_STARTED, f"the group has no offset in this queue{lost}"
    count = offset - committed
    before = f"{count} messages come before it" if count else "it is the next one"
    return State.BEHIND, f"the offset of the group is {committed}, {before}{lost}"


def _retry_number(copy: Copy) -> int:
    return copy.reconsume_times


def _change(fate: Fate, state: State, reason: str, **more: object) -> Fate:
    return msgspec.structs.replace(fate, state=state, reason=reason, **more)
