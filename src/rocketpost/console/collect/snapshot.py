"""The state of a cluster as one round found it. Values only; unknown numbers are None."""

from __future__ import annotations

import msgspec

from rocketpost.model.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from rocketpost.model.topic import TopicConfig

BEHIND_MS = 10_000
"""A group whose next messages are younger than this keeps up: some always wait for a moment."""


class BrokerView(msgspec.Struct, kw_only=True, rename="camel"):
    """A server of a broker name. All figures are None if it did not answer."""

    cluster: str
    name: str
    broker_id: int
    address: str
    problem: str | None = None
    is_reached: bool = True
    """Whether a connection to its announced address could be made from here, and lasted."""
    version: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    in_today: int | None = None
    out_today: int | None = None
    disk_ratio: float | None = None
    oldest_ms: int | None = None
    in_bytes: float | None = None
    """Bytes stored per second since the round before; None before the second."""
    flush_behind_bytes: int | None = None
    dispatch_behind_bytes: int | None = None
    started_ms: int | None = None
    log_bytes: int | None = None
    runtime: dict[str, str] = {}

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return self.broker_id == 0


class TopicView(msgspec.Struct, kw_only=True, rename="camel"):
    """A topic over all its brokers."""

    name: str
    kind: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    brokers: list[str] = []
    groups: list[str] = []
    in_rate: float | None = None
    worst_lag: int | None = None

    @property
    def is_of_users(self) -> bool:
        """Whether users made it, rather than the servers for themselves."""
        return self.kind not in ("system", "retry", "dead")


class GroupView(msgspec.Struct, kw_only=True, rename="camel"):
    """A consumer group over all brokers."""

    name: str
    topics: list[str] = []
    brokers: list[str] = []
    out_rate: float | None = None
    lag: int | None = None
    """Messages that wait, by offsets; None if a broker did not answer."""
    delay_ms: int | None = None
    """Age of the last message that it consumed, if others wait; None if unknown."""
    retrying: int | None = None
    still_queues: int = 0
    """Queues with waiting messages whose offset has not moved for half a minute."""
    still_reason: str = ""
    change: float | None = None
    """Change of the lag in messages per second; None before the second round."""
    has_dead_topic: bool = False
    members: int | None = None
    """Connected members; None if the console has not asked lately."""
    is_mixed: bool = False
    """Whether its members are known to have different subscriptions."""
    problem: str | None = None

    @property
    def state(self) -> str:
        """Its condition in one word."""
        if self.lag is None:
            return "unknown"
        if self.lag and self.members == 0:
            return "offline"
        if self.is_mixed:
            return "mixed"
        if self.lag == 0:
            return "fine"
        if self.still_queues:
            return "still"
        return "behind" if self.delay_ms is None or self.delay_ms > BEHIND_MS else "fine"

    @property
    def drain_seconds(self) -> float | None:
        """Time until nothing waits at the present rate; None if it does not shrink."""
        if not self.lag or self.change is None or self.change >= 0:
            return None
        return self.lag / -self.change


class Snapshot(msgspec.Struct, kw_only=True, rename="camel"):
    """Everything that a round found."""

    at_ms: int
    """When the round ended; 0 before the first."""
    took_ms: int = 0
    calls: int = 0
    """Requests to brokers and name servers that the round took."""
    every_seconds: float = 0.0
    problem: str | None = None
    """The reason why no name server answered; the rest is empty then."""
    clusters: dict[str, list[str]] = {}
    brokers: list[BrokerView] = []
    topics: dict[str, TopicView] = {}
    groups: dict[str, GroupView] = {}
    producers: dict[str, int] = {}
    """Connected producers by group, where brokers tell."""

    @property
    def is_known(self) -> bool:
        """Whether a name server told which brokers there are; else all the rest is unknown."""
        return self.at_ms > 0 and self.problem is None

    @property
    def silent(self) -> list[BrokerView]:
        """The brokers that did not answer."""
        return [each for each in self.brokers if each.problem is not None]


EMPTY = Snapshot(at_ms=0)

TOPIC_KINDS = ("normal", "fifo", "delay", "transaction", "mixed", "retry", "dead", "system")


def topic_kind(config: TopicConfig) -> str:
    """Return the kind of a topic, by its name and its attribute ``message.type``."""
    name = config.topic_name
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead"
    if is_system_topic(name) or is_system_group(name):
        return "system"
    kind = config.attributes.get("message.type", config.attributes.get("+message.type", ""))
    known = {"FIFO": "fifo", "DELAY": "delay", "TRANSACTION": "transaction", "MIXED": "mixed"}
    return known.get(kind.upper(), "normal")


def group_of_topic(topic: str) -> str | None:
    """Return the group whose retries or dead letters a topic has."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None
