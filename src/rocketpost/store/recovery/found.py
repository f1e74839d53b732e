"""What a recovery begins with, and what it leaves."""

from __future__ import annotations

import logging
from typing import NamedTuple

from rocketpost.store.checkpoint import Checkpoint
from rocketpost.store.recovery.extent import Extent

logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """Positions at which the store continues."""

    end: int
    index_position: int
    store_ms: int


class Found(NamedTuple):
    """Contents of the small files before anything was changed."""

    checkpoint: Checkpoint
    extent: Extent | None
    clean: bool
    accept_missing: bool
    boot: bytes
    """Digest of the machine's boot id."""
    cut: int | None
    """Where the log was cut on purpose, if that is to be finished; it ends there by now."""

    def trusted_extent(self) -> Extent | None:
        """Return the extent, unless another broker went on since, or it is older than the rest."""
        progress, extent = self.checkpoint.progress, self.extent
        if progress is None or extent is None:
            return None
        if extent.durable < progress.position:
            logger.warning("extent file is older than the checkpoint, it is written again")
            return None
        return extent
