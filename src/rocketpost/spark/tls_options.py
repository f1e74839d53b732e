"""TLS of sources and sinks: the options ``tls`` and ``tlsConfigFile``, or else the environment."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeVar

from rocketpost.client.tls import (
    environment_tls_blocking,
    environment_tls_file,
    read_tls_file_blocking,
)
from rocketpost.errors import ConfigError
from rocketpost.transport.tls_contexts import ClientTls

T = TypeVar("T", bound="HasTls")


class HasTls(Protocol):
    """Options that include TLS."""

    @property
    def tls(self) -> bool | None:
        """Whether connections use TLS; None if the environment decides."""

    @property
    def tls_file(self) -> str:
        """A file with RocketMQ's keys for clients; empty for the defaults."""


def check_tls(options: HasTls) -> None:
    """Check that the two options do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    if options.tls_file and not options.tls:
        raise ConfigError("tlsConfigFile needs tls=true: otherwise nothing is encrypted")


def find_tls(options: HasTls) -> ClientTls | None:
    """Return the TLS of the options, or else of the environment; None for plain connections.

    Raises:
        ConfigError: A file cannot be used.
    """
    if options.tls is None:
        return environment_tls_blocking()
    if not options.tls:
        return None
    return read_tls_file_blocking(options.tls_file) if options.tls_file else ClientTls()


def with_tls(options: T) -> T:
    """Return options that include TLS, for tasks that run in another environment.

    The files that they name are read by every task, so each machine needs them.

    Raises:
        ConfigError: A file cannot be used.
    """
    found = find_tls(options)
    if found is not None:
        found.make_context_blocking()  # refuse now what would fail in every task
    if options.tls is not None or found is None:
        return options
    changes: dict[str, Any] = {"tls": True, "tls_file": environment_tls_file()}
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]
