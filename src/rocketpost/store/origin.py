"""Detection of a store that only RocketMQ has written, before it is opened.

RocketMQ does not change files that it does not know, nor the bytes after its own in the checkpoint.
So a store that this program has ever opened keeps traces of it, even if Java wrote to it since.
"""

from __future__ import annotations

from rocketpost.store.checkpoint_page import FOREIGN_BYTES
from rocketpost.store.files import FileSystem, read_whole_blocking
from rocketpost.store.layout import Layout


def is_foreign_blocking(layout: Layout, files: FileSystem) -> bool:
    """Tell whether RocketMQ wrote all of a store; False in doubt.

    A store without RocketMQ's checkpoint is in doubt: its other files may be lost as well.
    """
    checkpoint = read_whole_blocking(files, layout.checkpoint)
    if not any(checkpoint) or any(checkpoint[FOREIGN_BYTES:]):
        return False
    return all(files.stat(path) is None for path in _own_paths(layout))


def _own_paths(layout: Layout) -> list[str]:
    """Return the files and directories that RocketMQ does not have."""
    return [
        layout.allocating,
        layout.extent,
        layout.truncating,
        layout.late_queues,
        *layout.hard_states,
        layout.resetting,
        layout.outside_group,
        layout.damage,
        layout.scrub,
        layout.deleted_queues,
        layout.cut_tails,
        layout.known,
        layout.deleted_topics,
        layout.producer_state,
        f"{layout.producer_state}.bak",
        layout.timer_journal(0),
        layout.timer_journal(1),
    ]
