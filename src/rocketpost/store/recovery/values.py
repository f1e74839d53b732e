"""Input and result of a recovery."""

from __future__ import annotations

import logging
from typing import NamedTuple

from rocketpost.store.checkpoint import Checkpoint
from rocketpost.store.recovery.extent import Extent

logger = logging.getLogger(__name__)


class RecoveryResult(NamedTuple):
    """Positions at which the store continues."""

    end: int
    index_position: int
    store_ms: int


class RecoveryInput(NamedTuple):
    """Contents of the small files before anything was changed."""

    checkpoint: Checkpoint
    extent: Extent | None
    clean: bool
    accept_missing: bool
    boot: bytes
    """Digest of the machine's boot id."""
    cut: int | None
    """Position of a deliberate cut of the log that is to be finished; the log ends there now."""
    has_late_queues: bool
    """Whether the log may have queues whose first records expired before they came here."""

    def trusted_extent(self) -> Extent | None:
        """Return the extent, unless another broker wrote since, or the checkpoint is newer."""
        progress, extent = self.checkpoint.progress, self.extent
        if progress is None or extent is None:
            return None
        if extent.durable < progress.position:
            logger.warning("extent file is older than the checkpoint, it is written again")
            return None
        return extent
