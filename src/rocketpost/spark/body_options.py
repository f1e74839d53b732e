"""Options of sources and sinks about message bodies: the format and its schema."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocketpost.errors import ConfigError
from rocketpost.settings import option


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """Options about the format of message bodies."""

    body_format: str = option("bodyFormat", "bytes")
    body_schema: str = option("bodySchema", "")
    body_schema_file: str = option("bodySchemaFile", "")
    body_message: str = option("bodyMessage", "")

    def check_bodies(self) -> None:
        """Check these options.

        Raises:
            ConfigError: An option is not valid, or not valid together with another.
        """
        check_choice("bodyFormat", self.body_format, "bytes", "string", "json", "avro", "protobuf")
        if self.body_schema and self.body_schema_file:
            raise ConfigError("only one of bodySchema and bodySchemaFile can be given")
        if (self.body_schema or self.body_schema_file) and not self.has_fields:
            raise ConfigError(f"bodyFormat={self.body_format} does not take a schema for bodies")
        if self.body_schema and self.body_format == "protobuf":
            raise ConfigError("bodyFormat=protobuf takes its schema from bodySchemaFile")
        if self.body_message and self.body_format != "protobuf":
            raise ConfigError("bodyMessage is for bodyFormat=protobuf")

    @property
    def has_fields(self) -> bool:
        """Whether a body is a struct."""
        return self.body_format not in ("bytes", "string")

    def schema_text(self) -> str:
        """Return the schema of bodies as text, from the file if there is one.

        Raises:
            ConfigError: The file cannot be read, or is not text.
        """
        if not self.body_schema_file:
            return self.body_schema
        try:
            return str(self.schema_bytes(), "utf-8")
        except UnicodeDecodeError:
            raise ConfigError(
                f"bodySchemaFile={self.body_schema_file} is not a text file"
            ) from None

    def schema_bytes(self) -> bytes:
        """Return the content of the file with the schema of bodies; empty without a file.

        Raises:
            ConfigError: The file cannot be read.
        """
        if not self.body_schema_file:
            return b""
        try:
            return Path(self.body_schema_file).read_bytes()
        except OSError as error:
            raise ConfigError(f"bodySchemaFile cannot be read: {error}") from None


def check_choice(key: str, value: str, *allowed: str) -> None:
    """Check that an option has one of the allowed values.

    Raises:
        ConfigError: The option has another value.
    """
    if value not in allowed:
        raise ConfigError(f"{key}={value!r} must be one of {', '.join(allowed)}")
