"""Nothing is logged here."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Log nothing: a captured error keeps the whole store that it came from in memory."""
    caplog.set_level(logging.CRITICAL + 1, logger="rocketpost")
