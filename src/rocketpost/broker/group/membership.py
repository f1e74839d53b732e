"""Connected producers and consumers, by connection and client id.

A client is identified by the connection of its heartbeat. The same client id may be on two
connections for a while, if it reconnected before the old connection was found dead.

Subscriptions belong to the group, not to the member. The newest heartbeat wins, so members with
different subscriptions overwrite each other. That is an application error which makes the group
miss messages, so it is logged as soon as it is seen.

This module sends nothing: every call returns whether the group changed, and the server notifies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

from rocketpost.codec.faults import SystemBusy
from rocketpost.model.clock import Clock
from rocketpost.model.group import Subscription

logger = logging.getLogger(__name__)

EXPIRY_MS: Final = 120_000
MEMBERS_MAX: Final = 500_000
"""Memberships of all clients in all groups; more are refused."""

WEIGHT_MAX: Final = 1_000_000
"""Topics and tags of all subscriptions, long texts counting more; more are refused."""

_REPORTED_MAX: Final = 5
_DIFFERENCES_MAX: Final = 20
_WEIGHT_CHARACTERS: Final = 64
BROADCASTING: Final = "BROADCASTING"

_Signature = frozenset[tuple[str, str, str]]


class Client(NamedTuple):
    """One client on one connection. ``connection`` is only compared and returned."""

    connection: Hashable
    client_id: str
    address: str
    language: str
    version: int
    protocol: str = ""
    """The protocol that it speaks to a proxy, if it is behind one."""
    client_version: str = ""
    """The version as it names it, if it is behind a proxy."""


class Member:
    """A client in a group."""

    __slots__ = ("client", "last_ms", "signature", "weight")

    def __init__(self, client: Client, now_ms: int) -> None:
        self.client = client
        self.last_ms = now_ms
        self.signature: _Signature | None = None
        self.weight = 0


class ConsumerGroup:
    """The connected members of a consumer group, and the group's subscriptions."""

    __slots__ = (
        "_client_ids",
        "by_signature",
        "consume_from_where",
        "consume_type",
        "fingerprint",
        "members",
        "message_model",
        "name",
        "reported",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Hashable, Member] = {}
        self.by_signature: dict[_Signature, dict[Hashable, Member]] = {}
        """The members by their subscriptions, since most members agree."""
        self._client_ids: list[str] | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.fingerprint = 0
        self.reported = False

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message, so that queues are not divided."""
        return self.message_model == BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        """Every member's id once, sorted; a duplicate would get queues that no member reads."""
        if self._client_ids is None:  # each member asks after each change
            self._client_ids = sorted({each.client.client_id for each in self.members.values()})
        return self._client_ids

    def note_replaced(self, before: Member | None) -> None:
        """Note that a member joined, left, or replaced ``before``."""
        self._client_ids = None
        if before is not None:
            self.record_signature(before, None)

    def record_signature(self, member: Member, signature: _Signature | None) -> None:
        """Record the subscriptions of a member; None if it left."""
        before, connection = member.signature, member.client.connection
        if before is not None:
            alike = self.by_signature[before]
            alike.pop(connection, None)
            if not alike:
                del self.by_signature[before]
        member.signature = signature
        if signature is not None:
            self.by_signature.setdefault(signature, {})[connection] = member


class JoinResult(NamedTuple):
    """Effect of a consumer's heartbeat. ``stale`` asks the client for all its subscriptions."""

    changed: bool
    stale: bool = False


class SilentClients(NamedTuple):
    """Connections that fell silent, and the consumer groups that lost a member."""

    connections: list[Hashable]
    groups: list[str]


class Membership:
    """Producers and consumers of one broker. Owned by the event loop."""

    def __init__(self, *, clock: Clock, expiry_ms: int = EXPIRY_MS) -> None:
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._producers_by_id: dict[str, dict[tuple[str, Hashable], Member]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Hashable, set[tuple[bool, str]]] = {}
        self._turn = 0
        self.on_producer: Callable[[str], None] = _do_nothing
        """Called with the group of each new producer."""
        self._member_count = 0
        self._weight = 0

    # Producers.

    def join_producer(self, group: str, client: Client) -> None:
        """Note a heartbeat of a producer.

        Raises:
            SystemBusy: There are too many members already.
        """
        self._check_room(client.connection in self._producers.get(group, ()))
        members = self._producers.setdefault(group, {})
        before = members.get(client.connection)
        member, new = _refresh(members, client, self._clock.now_ms())
        if new:
            self._forget_id(group, before)
            same_id = self._producers_by_id.setdefault(client.client_id, {})
            same_id[group, client.connection] = member
        self._remember(client.connection, group, consumer=False)
        if new:
            self.on_producer(group)

    @property
    def producers(self) -> Mapping[str, Mapping[Hashable, Member]]:
        """Members of every producer group, by connection."""
        return self._producers

    def next_producer(self, group: str) -> Client | None:
        """Return the next of the group's producers, in rotation; None if it has none."""
        members = self._producers.get(group)
        if not members:
            return None
        self._turn += 1
        return next(islice(members.values(), self._turn % len(members), None)).client

    def producer(self, client_id: str) -> Client | None:
        """Return the newest connection of a producer with this id."""
        found = self._producers_by_id.get(client_id)
        return max(found.values(), key=lambda member: member.last_ms).client if found else None

    # Consumers.

    def join_consumer(
        self,
        group: str,
        client: Client,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[Subscription] | None,
        fingerprint: int = 0,
    ) -> JoinResult:
        """Note a heartbeat of a consumer.

        Args:
            group: The group.
            client: The client and its connection.
            consume_type: CONSUME_PASSIVELY and the like; the newest value counts.
            message_model: CLUSTERING or BROADCASTING; the newest value counts.
            consume_from_where: Start of a new group; the newest value counts.
            subscriptions: All topics that the group subscribes to; None keeps the known ones.
            fingerprint: The client's own hash of the heartbeat, 0 if it sends none.

        Raises:
            SystemBusy: There are too many members or subscriptions already.
        """
        state = self._consumers.get(group)
        self._check_room(state is not None and client.connection in state.members)
        subscriptions = None if subscriptions is None else list(subscriptions)
        weight = _weight(subscriptions or ())
        known = state.members.get(client.connection) if state is not None else None
        self._check_weight(weight - (known.weight if known is not None else 0))
        if state is None:
            state = self._consumers[group] = ConsumerGroup(group)
        member, new = _refresh(state.members, client, self._clock.now_ms())
        if new:
            state.note_replaced(known)
        self._remember(client.connection, group, consumer=True)
        for name, value in (
            ("consume_type", consume_type),
            ("message_model", message_model),
            ("consume_from_where", consume_from_where),
        ):
            _set_and_report(state, name, value, client)
        if subscriptions is None:
            return JoinResult(
                new, stale=not state.subscriptions or fingerprint != state.fingerprint
            )
        self._weight += weight - member.weight
        member.weight = weight
        wanted = {each.topic: each for each in subscriptions}
        state.fingerprint = fingerprint
        changed = _replace_subscriptions(state.subscriptions, wanted)
        signature = _signature(wanted.values())
        if new or signature != member.signature:
            state.record_signature(member, signature)
            _report_differences(state)
        return JoinResult(changed or new)

    @property
    def consumers(self) -> Mapping[str, ConsumerGroup]:
        """Every consumer group with a connected member."""
        return self._consumers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the group's connected members and subscriptions; None if nobody is connected."""
        return self._consumers.get(group)

    def consumer(self, group: str, client_id: str) -> Client | None:
        """Return the newest connection of a member of the group."""
        state = self._consumers.get(group)
        members = state.members.values() if state else ()
        found = [member for member in members if member.client.client_id == client_id]
        return max(found, key=lambda member: member.last_ms).client if found else None

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the group's subscription to a topic; None if it is not connected or has none."""
        state = self._consumers.get(group)
        return None if state is None else state.subscriptions.get(topic)

    def subscribers(self, topic: str) -> list[str]:
        """Return the connected groups that subscribe to the topic."""
        return [name for name, state in self._consumers.items() if topic in state.subscriptions]

    # Leaving.

    def leave(
        self, connection: Hashable, *, producer_group: str = "", consumer_group: str = ""
    ) -> list[str]:
        """Remove a connection from the groups it names; return the consumer groups it left."""
        left = []
        if producer_group:
            self._remove(connection, producer_group, consumer=False)
        if consumer_group and self._remove(connection, consumer_group, consumer=True):
            left.append(consumer_group)
        return left

    def forget_connection(self, connection: Hashable) -> list[str]:
        """Forget a closed connection; return the consumer groups that lost a member."""
        left = []
        for consumer, group in self._groups_of.pop(connection, ()):
            if self._remove(connection, group, consumer=consumer) and consumer:
                left.append(group)
        return left

    def expire(self) -> SilentClients:
        """Forget members that have been silent for too long; return the connections to close."""
        limit_ms = self._clock.now_ms() - self._expiry_ms
        silent = [
            (connection, group, consumer)
            for connection, group, consumer, member in self._all_members()
            if member.last_ms < limit_ms
        ]
        groups: dict[str, None] = {}
        for connection, group, consumer in silent:
            logger.warning("silent client removed: group=%s connection=%s", group, connection)
            self._remove(connection, group, consumer=consumer)
            if consumer:
                groups[group] = None
        connections = dict.fromkeys(connection for connection, _, _ in silent)
        # A connection that is still active for another group stays open.
        return SilentClients(
            [each for each in connections if each not in self._groups_of], list(groups)
        )

    def _all_members(self) -> Iterator[tuple[Hashable, str, bool, Member]]:
        for group, members in self._producers.items():
            for connection, member in members.items():
                yield connection, group, False, member
        for group, state in self._consumers.items():
            for connection, member in state.members.items():
                yield connection, group, True, member

    def _check_room(self, known: bool) -> None:
        if not known and self._member_count >= MEMBERS_MAX:
            raise SystemBusy(f"[OVERLOAD]{MEMBERS_MAX} members are already connected")

    def _check_weight(self, more: int) -> None:
        if more > 0 and self._weight + more > WEIGHT_MAX:
            raise SystemBusy(
                f"[OVERLOAD]members already subscribe to {self._weight} topics and tags"
            )

    def _remember(self, connection: Hashable, group: str, *, consumer: bool) -> None:
        groups = self._groups_of.setdefault(connection, set())
        if (consumer, group) not in groups:
            groups.add((consumer, group))
            self._member_count += 1

    def _forget_id(self, group: str, gone: Member | None) -> None:
        """Remove a producer that has left from the table by client id."""
        if gone is None:
            return
        same_id = self._producers_by_id[gone.client.client_id]
        del same_id[group, gone.client.connection]
        if not same_id:
            del self._producers_by_id[gone.client.client_id]

    def _remove(self, connection: Hashable, group: str, *, consumer: bool) -> bool:
        known = self._groups_of.get(connection)
        if known is not None:
            known.discard((consumer, group))
            if not known:
                del self._groups_of[connection]
        if not consumer:
            members = self._producers.get(group, {})
            gone = members.pop(connection, None)
            self._forget_id(group, gone)
            self._member_count -= gone is not None
            if not members:
                self._producers.pop(group, None)
            return gone is not None
        state = self._consumers.get(group)
        member = None if state is None else state.members.pop(connection, None)
        if state is None or member is None:
            return False
        state.note_replaced(member)
        self._member_count -= 1
        self._weight -= member.weight
        if not state.members:
            del self._consumers[group]
        return True


def _refresh(members: dict[Hashable, Member], client: Client, now_ms: int) -> tuple[Member, bool]:
    member = members.get(client.connection)
    if member is not None and member.client.client_id == client.client_id:
        member.last_ms = now_ms
        return member, False
    weight = 0 if member is None else member.weight  # still counted; the caller corrects it
    member = members[client.connection] = Member(client, now_ms)
    member.weight = weight
    return member, True


def _set_and_report(state: ConsumerGroup, name: str, value: str, client: Client) -> None:
    before = getattr(state, name)
    if before != value:
        if before:
            logger.warning(
                "members of a group disagree: group=%s client=%s %s=%s before=%s",
                state.name,
                client.client_id,
                name,
                value,
                before,
            )
        setattr(state, name, value)


def _replace_subscriptions(
    current: dict[str, Subscription], wanted: Mapping[str, Subscription]
) -> bool:
    """Adopt newer subscriptions and remove others; return whether the topics changed."""
    changed = current.keys() != wanted.keys()
    for topic in [topic for topic in current if topic not in wanted]:
        del current[topic]
    for topic, subscription in wanted.items():
        known = current.get(topic)
        if known is None or subscription.sub_version > known.sub_version:
            current[topic] = subscription
    return changed


def _weight(subscriptions: Iterable[Subscription]) -> int:
    return sum(
        1
        + len(each.tags_set or ())
        + (len(each.topic) + len(each.sub_string)) // _WEIGHT_CHARACTERS
        for each in subscriptions
    )


def _signature(subscriptions: Iterable[Subscription]) -> _Signature:
    return frozenset(
        (each.topic, each.expression_type or "TAG", each.sub_string) for each in subscriptions
    )


def _report_differences(state: ConsumerGroup) -> None:
    if len(state.by_signature) < 2:
        if state.reported:
            logger.info("members of a group agree again: group=%s", state.name)
        state.reported = False
        return
    state.reported = True
    some = list(islice(state.by_signature.items(), _REPORTED_MAX))
    common = frozenset.intersection(*(signature for signature, _ in some))
    for signature, members in some:
        odd = "; ".join(
            f"{topic} {kind} {text}"
            for topic, kind, text in nsmallest(_DIFFERENCES_MAX, signature - common)
        )
        logger.warning(
            "members of a group subscribe differently, messages will be missed: "
            "group=%s client=%s only_here=%s",
            state.name,
            next(iter(members.values())).client.client_id,
            odd or "nothing",
        )


def _do_nothing(group: str) -> None:
    """Do nothing."""
