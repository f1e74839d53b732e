"""Values of the report of an audit, for tables, JSON and the page. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from rocketpost.spark.pipelines.timeline import Moment

EXAMPLES_MAX: Final = 20


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One question of the audit, and its answer.

    Attributes:
        name: The name of the check, such as ``missing``.
        count: The number of findings.
        is_fault: Whether a finding makes the audit fail.
        meaning: A description of a finding.
        examples: Some findings.
    """

    name: str
    count: int
    is_fault: bool
    meaning: str
    examples: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether these findings make the audit fail."""
        return self.is_fault and self.count > 0


class QueueFacts(msgspec.Struct, frozen=True, rename="camel"):
    """The content of one queue, and the progress of a group in it."""

    topic: str
    broker: str
    queue_id: int
    messages: int
    stored_bytes: int
    first: int
    last: int
    holes: int
    repeats: int
    disorder: int
    committed: int | None = None
    lag: int | None = None

    @property
    def name(self) -> str:
        """The queue as text."""
        return f"{self.topic}/{self.broker}/{self.queue_id}"


class PlannedQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The range of one queue that an audit would read, and the offset of the group."""

    topic: str
    broker: str
    queue_id: int
    first: int | None
    """The first offset; None if there are no messages."""
    last: int | None
    committed: int | None


class Latency(msgspec.Struct, frozen=True, rename="camel"):
    """Durations in milliseconds.

    ``buckets`` counts by powers of two: below 1 ms, below 2, below 4, and so on.
    """

    name: str
    count: int
    median: float
    p95: float
    p99: float
    max: float
    buckets: tuple[int, ...]


class Hot(msgspec.Struct, frozen=True):
    """A key, and how many messages have it."""

    key: str
    messages: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that an audit found."""

    topics: tuple[str, ...]
    source: str
    identified_by: str
    messages: int
    stored_bytes: int
    first_ms: int | None
    last_ms: int | None
    findings: tuple[Finding, ...]
    queues: tuple[QueueFacts, ...]
    latencies: tuple[Latency, ...]
    hot_keys: tuple[Hot, ...]
    timeline: tuple[Moment, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, duplicated or damaged."""
        return not any(finding.fails for finding in self.findings)

    def finding(self, name: str) -> Finding:
        """Return the answer to one question.

        Raises:
            KeyError: The check was not made.
        """
        for each in self.findings:
            if each.name == name:
                return each
        raise KeyError(name)

    def to_json(self) -> bytes:
        """Return the report as JSON, readable by people too."""
        whole = {"isWhole": self.is_whole} | msgspec.to_builtins(self)
        return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
