"""Replacement of a member's log by an empty one, with everything that was derived from it."""

from __future__ import annotations

import logging
import posixpath

from rocketpost.model.ids import Position
from rocketpost.server.group.life.beginning import Beginning
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.member.reset import remove_tree_blocking, reset_log_blocking

logger = logging.getLogger(__name__)


def begin_log_blocking(
    config: StoreConfig, beginning: Beginning, files: FileSystem | None = None
) -> None:
    """Replace the log of a closed store by an empty one that begins where the leader's does.

    Raises:
        StoreError: The log cannot begin there; nothing was changed. Or a file could not be changed:
            the next start finishes the replacement.
    """
    files = files if files is not None else RealFiles()
    reset_log_blocking(
        config,
        files,
        first=beginning.first,
        spans=tuple(beginning.spans),
        members=beginning.configuration,
        starts=beginning.starts,
        on_reset=lambda _: forget_derived_blocking(config, files, Position(beginning.first)),
    )


def forget_derived_blocking(config: StoreConfig, files: FileSystem, first: Position) -> None:
    """Remove what the broker's features derived from a log that is gone.

    Tables stay: the log that follows has a copy of them.

    Raises:
        OSError: A file cannot be removed.
    """
    layout = Layout(config.root, config.commit_log_path)
    state = layout.producer_state
    known = posixpath.join(layout.known, posixpath.basename(state))
    for path in (
        layout.timer_wheel,
        layout.timer_journal(0),
        layout.timer_journal(1),
        layout.timer_log,
        layout.timer_checkpoint,
        state,
        f"{state}.bak",
        known,
    ):
        remove_tree_blocking(files, path)
    for directory in (layout.root, layout.config, layout.known):
        if files.stat(directory) is not None:
            files.fsync_dir(directory)
    logger.info("files derived from the old log are removed: first=%s", first)
