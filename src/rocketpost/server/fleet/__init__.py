"""Several brokers under one command: one process each, with settings derived from one file."""

from __future__ import annotations

from typing import Final

BROKERS_MAX: Final = 64
"""Limit of the brokers of one command."""
NODES_MAX: Final = 7
"""Limit of the members of a group that one command runs."""
