"""The file ``outside-group``: a broker that was no member has used the store of a member.

Such a broker shows everything in the log, and appends records that belong to no term. If the store
became a member again, those records would count as records of its last term, and two different logs
would look equal. So it is not opened as a member any more. A Java broker leaves no such file, but
changes the checkpoint.
"""

from __future__ import annotations

import logging

from rocketpost.store.checkpoint import is_changed_by_others
from rocketpost.store.files import FileSystem, read_whole_blocking, write_whole_blocking
from rocketpost.store.layout import Layout

logger = logging.getLogger(__name__)


def mark_use_outside_group(files: FileSystem, layout: Layout) -> None:
    """Make the file, durably, if the store belongs to a member of a group.

    Raises:
        OSError: It cannot be made.
    """
    if not _is_members(files, layout) or files.stat(layout.outside_group) is not None:
        return
    write_whole_blocking(files, layout.outside_group, b"")
    logger.warning(
        "this store belongs to a member of a group; it is opened outside of the group, and cannot"
        " be used by a member again path=%s", layout.root,
    )  # fmt: skip


def why_not_member(files: FileSystem, layout: Layout) -> str:
    """Return why a member may not use the store; empty if it may.

    Raises:
        OSError: A file cannot be read.
    """
    if not _is_members(files, layout):
        return ""
    is_ours = files.stat(layout.outside_group) is not None
    checkpoint = read_whole_blocking(files, layout.checkpoint)
    if not is_ours and not is_changed_by_others(checkpoint):
        return ""
    who = "a broker outside of its group" if is_ours else "a Java broker"
    return (
        f"{layout.root} was used by {who} since it belonged to a member, so its log may differ from"
        " that of the group. Start this member with an empty storePathRootDir: the other members"
        " have its messages. Messages that were sent to the other broker are only in the old one"
    )


def _is_members(files: FileSystem, layout: Layout) -> bool:
    return any(files.stat(path) is not None for path in layout.hard_states)
