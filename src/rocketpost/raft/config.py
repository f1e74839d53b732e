"""Settings of a member's state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketpost.errors import ConfigError

TICK_MS = 50
"""Time between two ticks, if the driver follows the defaults below."""


class Chance(Protocol):
    """Source of random numbers; a seeded ``random.Random``."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from ``a`` to ``b``, both included."""

    def getrandbits(self, k: int) -> int:
        """Return a number of ``k`` bits."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Times in ticks, sizes in bytes.

    Attributes:
        heartbeat_ticks: Longest silence of a leader.
        election_ticks: Silence after which a follower may campaign, and a leader that does not
            hear a majority steps down. Within it, a member that hears its leader gives no vote.
        election_ticks_max: A follower campaigns after a random silence of at most this.
        window_bytes: A follower is sent no more once this many bytes are unacknowledged.
        gather_bytes: While a follower has bytes to acknowledge, fewer new ones than this wait for
            its reply, or for the next tick. With 0, nothing waits.
        spare_bytes: A follower that a majority does not need is sent new bytes when there are this
            many, or at the next tick. With 0, nothing waits.
    """

    heartbeat_ticks: int = 3
    election_ticks: int = 10
    election_ticks_max: int = 20
    window_bytes: int = 8 * 1024 * 1024
    gather_bytes: int = 0
    spare_bytes: int = 0

    def __post_init__(self) -> None:
        if self.heartbeat_ticks < 1:
            raise ConfigError(f"heartbeat_ticks is {self.heartbeat_ticks}; use 1 or more")
        if self.election_ticks <= 2 * self.heartbeat_ticks:
            raise ConfigError(
                f"election_ticks is {self.election_ticks}; use more than twice heartbeat_ticks,"
                f" {self.heartbeat_ticks}, so that one lost heartbeat starts no election"
            )
        if self.election_ticks_max <= self.election_ticks:
            raise ConfigError(
                f"election_ticks_max is {self.election_ticks_max}; use more than election_ticks,"
                f" {self.election_ticks}, so that members do not campaign at once"
            )
        if self.window_bytes < 1:
            raise ConfigError(f"window_bytes is {self.window_bytes}; use 1 or more")
        for name, size in (("gather", self.gather_bytes), ("spare", self.spare_bytes)):
            if not 0 <= size <= self.window_bytes:
                raise ConfigError(
                    f"{name}_bytes is {size}; use 0 to {self.window_bytes}, the window_bytes"
                )
