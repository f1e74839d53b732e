"""Options about the rows of a source, whatever it reads: what properties and bodies become.

Spark 4.3 plans a frame of a Python source once, and keeps that plan for later queries of the frame
and for other uses of it in one query. What filters have pruned is missing there. So a frame takes
filters only if the user says that it serves one query.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocketpost.errors import ConfigError
from rocketpost.settings import option


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """How messages are shown."""

    properties_format: str = option("propertiesFormat", "map")
    read_decoded: bool = option("readDecoded", True)
    body_format: str = option("bodyFormat", "bytes")
    body_schema: str = option("bodySchema", "")
    body_schema_file: str = option("bodySchemaFile", "")
    body_message: str = option("bodyMessage", "")
    body_errors: str = option("bodyErrors", "fail")
    filter_pushdown: str = option("filterPushdown", "false")

    def check_rows(self) -> None:
        """Check these options.

        Raises:
            ConfigError: One makes no sense, or does not go with another.
        """
        if self.filter_pushdown == "true":
            raise ConfigError(
                "filterPushdown=true is not safe: Spark 4.3 keeps what one query of a frame has "
                "ruled out, and a second query of that frame misses it. filterPushdown=once says "
                "that every query loads a frame of its own"
            )
        one_of("filterPushdown", self.filter_pushdown, "false", "once")
        one_of("propertiesFormat", self.properties_format, "map", "string", "none")
        one_of("bodyFormat", self.body_format, "bytes", "string", "json", "avro", "protobuf")
        one_of("bodyErrors", self.body_errors, "fail", "null", "keep")
        if self.body_schema and self.body_schema_file:
            raise ConfigError("only one of bodySchema and bodySchemaFile can be given")
        if (self.body_schema or self.body_schema_file) and self.body_format in ("bytes", "string"):
            raise ConfigError(f"bodyFormat={self.body_format} has no use for a schema of bodies")
        if self.body_schema and self.body_format == "protobuf":
            raise ConfigError("bodyFormat=protobuf takes its schema from bodySchemaFile")
        if self.body_message and self.body_format != "protobuf":
            raise ConfigError("bodyMessage is for bodyFormat=protobuf")
        if self.body_errors != "fail" and self.body_format == "bytes":
            raise ConfigError("bodyErrors needs a bodyFormat: bytes are never wrong")
        if self.body_format != "bytes" and not self.read_decoded:
            raise ConfigError(f"bodyFormat={self.body_format} needs readDecoded=true")

    @property
    def takes_filters(self) -> bool:
        """Whether the filters of a query prune what is read."""
        return self.filter_pushdown == "once"

    def schema_text(self) -> str:
        """Return the schema of bodies as text, from the file if there is one.

        Raises:
            ConfigError: The file cannot be read, or is no text.
        """
        if not self.body_schema_file:
            return self.body_schema
        try:
            return str(self.schema_bytes(), "utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"bodySchemaFile={self.body_schema_file} is no text") from None

    def schema_bytes(self) -> bytes:
        """Return what the file with the schema of bodies holds; nothing without one.

        Raises:
            ConfigError: The file cannot be read.
        """
        if not self.body_schema_file:
            return b""
        try:
            return Path(self.body_schema_file).read_bytes()
        except OSError as error:
            raise ConfigError(f"bodySchemaFile cannot be read: {error}") from None


def one_of(key: str, value: str, *allowed: str) -> None:
    """Check a choice.

    Raises:
        ConfigError: The value is none of those allowed.
    """
    if value not in allowed:
        raise ConfigError(f"{key}={value!r} is none of {', '.join(allowed)}")
