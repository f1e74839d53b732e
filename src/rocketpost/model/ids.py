"""Distinct types for numbers that must not be mixed up."""

from __future__ import annotations

from typing import NewType

Position = NewType("Position", int)
"""A byte position in the commit log."""

QueueOffset = NewType("QueueOffset", int)
"""An ordinal in a consume queue."""
