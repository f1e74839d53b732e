"""Options of ``format("rocketmq-log")``."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpost.errors import ConfigError
from rocketpost.settings import option
from rocketpost.spark.row_options import RowOptions, one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(RowOptions):
    """Which store is read, and what of it."""

    path: str = option("path", "")
    topic: str = option("topic", "")
    tags: str = option("tags", "*")
    starting_timestamp: int | None = option("startingTimestamp", None)
    ending_timestamp: int | None = option("endingTimestamp", None)
    view: str = option("view", "consumer")
    broker_name: str = option("brokerName", "")
    split_bytes: int = option("splitBytes", 128 * 1024 * 1024)
    check_crc: bool = option("checkCrc", False)
    on_corrupt: str = option("onCorrupt", "fail")

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path is required: the root of a store, or several parted by commas")
        self.check_rows()
        one_of("view", self.view, "consumer", "log")
        one_of("onCorrupt", self.on_corrupt, "fail", "stop", "skip")
        if self.split_bytes < 1024 * 1024:
            raise ConfigError(f"splitBytes={self.split_bytes} is too small; at least 1048576")

    @property
    def paths(self) -> list[str]:
        """The stores to read."""
        return [path.strip() for path in self.path.split(",") if path.strip()]

    @property
    def topics(self) -> frozenset[str]:
        """The topics to read; empty for all."""
        return frozenset(name.strip() for name in self.topic.split(",") if name.strip())
