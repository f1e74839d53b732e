"""The store's threads stay asleep here as well, and nothing is logged."""

from __future__ import annotations

import logging

import pytest

from ..store.conftest import sleeping_threads

__all__ = ["sleeping_threads"]


@pytest.fixture(autouse=True)
def _no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Log nothing: a captured error keeps the whole store that it came from in memory."""
    caplog.set_level(logging.CRITICAL + 1, logger="rocketpost")
