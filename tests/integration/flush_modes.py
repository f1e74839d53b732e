"""The two ways to flush, for tests of real processes that take seconds with each.

``make test`` runs SYNC_FLUSH, which does all that ASYNC_FLUSH does and waits for the disk as well;
``make chaos`` runs both.
"""

from __future__ import annotations

from typing import Final

import pytest

FLUSH_MODES: Final = [pytest.param("ASYNC_FLUSH", marks=pytest.mark.long), "SYNC_FLUSH"]
