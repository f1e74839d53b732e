"""A master or slave with a bug: ``python odd_replica.py BUG mqbroker -c FILE``.

The process is otherwise the real one.
"""

from __future__ import annotations

import sys
from typing import Any

from rocketpost.replication.acks import ReplicaAcks
from rocketpost.replication.sender import LogSender
from rocketpost.server.__main__ import servers
from rocketpost.server.replication.slave_link import SlaveLink
from rocketpost.server.writer.follower_log import FollowerLog

LATE_SECONDS = 0.3


def count_what_is_sent() -> None:
    """The master takes what it has sent for what the slave has."""
    report, send_frames = ReplicaAcks.report, SlaveLink._send_frames

    def eager(self: Any, link: Any, position: int, now_ms: int, **options: Any) -> None:
        report(self, link, max(position, link.sender.next), now_ms, **options)

    def counted(self: Any) -> None:
        try:
            send_frames(self)
        finally:
            if self.sender.acked:  # it has reported once, so that the master knows it
                self._on_report(self)

    ReplicaAcks.report = eager  # type: ignore[method-assign, assignment]
    SlaveLink._send_frames = counted  # type: ignore[method-assign]


def report_before_append() -> None:
    """The slave reports records that it appends a little later."""
    append = FollowerLog.append

    def late(self: Any, position: int, data: bytes | memoryview) -> Any:
        kept = bytes(data)
        end = position + len(kept)
        self._loop.call_later(LATE_SECONDS, lambda: append(self, position, kept))
        self.on_advance(end)
        return end

    FollowerLog.append = late  # type: ignore[method-assign]


def last_segment_only() -> None:
    """A new slave gets the last segment of the log."""
    prepare = LogSender.__init__

    def recent(self: Any, **options: Any) -> None:
        prepare(self, **(options | {"from_last_segment": True}))

    LogSender.__init__ = recent  # type: ignore[method-assign]


BUGS = {bug.__name__: bug for bug in (count_what_is_sent, report_before_append, last_segment_only)}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    servers(sys.argv[1:])
