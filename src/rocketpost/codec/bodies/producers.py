"""State of idempotent producers, as brokers save it and as tools and clients query it."""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.numbers import Int64


class ProducerState(msgspec.Struct, rename="camel", kw_only=True):
    """One producer: the stored sequences of its newest epoch, as runs [start, end)."""

    producer_id: str
    epoch: Int64 = 0
    last_timestamp: Int64 = 0
    """Store time of its newest message."""
    horizon: Int64 = 0
    """The sequence below which nothing is known any more."""
    runs: list[tuple[Int64, Int64]] = []

    @property
    def last_sequence(self) -> int | None:
        """The highest stored sequence."""
        return self.runs[-1][1] - 1 if self.runs else None


class ProducerStates(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_PRODUCER_STATES (7101)."""

    producers: list[ProducerState] = []
    total: int = 0
    """Number of all producers, even if the answer has only some."""


class ProducerSnapshot(msgspec.Struct, rename="camel", kw_only=True):
    """The file ``config/producerState.json``: the state at ``position`` of the log."""

    version: int = 1
    position: Int64
    anchor_position: Int64 = -1
    """Position of a message that must be in the log; otherwise the snapshot is of another log."""
    anchor_timestamp: Int64 = 0
    producers: list[ProducerState] = []


def decode_producer_states(data: bytes) -> ProducerStates:
    """Read an answer to GET_PRODUCER_STATES.

    Raises:
        RemoteProtocolError: The answer is malformed.
    """
    return decode_body(data, ProducerStates)
