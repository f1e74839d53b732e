"""Settings of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.spark.options import SourceOptions

UNIQUE_KEY: Final = "uniqKey"
KEYS: Final = "keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Settings of an audit.

    Attributes:
        topics: The topics.
        name_servers: Name servers of the brokers; also needed for groups and traces.
        lake: A lake to audit instead of brokers.
        store: A store directory to audit instead of brokers.
        identified_by: ``uniqKey`` or ``keys``: the identity of messages elsewhere.
        produced: A CSV, JSON or Parquet file, or a table, of messages that must be stored.
        produced_column: Its column with the ids.
        group: The group whose progress is checked.
        trace_topic: The topic with traces of producers and consumers.
        start_ms: The earliest store time.
        end_ms: Stored before.
        late_ms: Over how many milliseconds a message is late.
    """

    topics: tuple[str, ...]
    name_servers: str = ""
    lake: str = ""
    store: str = ""
    identified_by: str = UNIQUE_KEY
    produced: str = ""
    produced_column: str = ""
    group: str = ""
    trace_topic: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    late_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("a topic is required, whose messages are audited")
        if self.lake and self.store:
            raise ConfigError(
                "a lake and a store directory cannot be audited together; run two audits"
            )
        if self.identified_by not in (UNIQUE_KEY, KEYS):
            raise ConfigError(
                f"messages are identified by uniqKey or keys, not {self.identified_by!r}"
            )
        if self.produced_column and not self.produced:
            raise ConfigError("a column with ids needs the table that contains it")
        is_asked = self.group or self.trace_topic or not (self.lake or self.store)
        if is_asked and not self.name_servers:
            raise ConfigError("name servers are required, such as 127.0.0.1:9876")

    @property
    def source(self) -> str:
        """The audited source as text."""
        if self.lake:
            return f"lake {self.lake}"
        return f"store {self.store}" if self.store else f"brokers of {self.name_servers}"

    def source_options(self) -> SourceOptions:
        """Return the options for reading from brokers."""
        return SourceOptions(
            name_servers=self.name_servers,
            topic=",".join(self.topics),
            group=self.group,
            read_decoded=False,  # the CRC covers the bytes as they were sent
            starting_timestamp=self.start_ms,
            ending_timestamp=self.end_ms,
        )
