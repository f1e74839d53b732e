"""Planted bugs of members, to prove the campaigns. The process is otherwise the real one."""

from __future__ import annotations

from rocketpost.raft import leader
from rocketpost.raft.core import Log
from rocketpost.server.group.member_log import MemberLog
from rocketpost.store.member.member_store import MemberStore

_LATE_SECONDS = 0.5
"""Time between two flushes of a flusher that runs now and then."""


def commit_alone() -> None:
    """The leader takes for committed what it alone has."""
    leader.majority_position = lambda voters, position_of: max(map(position_of, voters))
    leader.Leader._may_commit_behind = lambda *_: True  # type: ignore[method-assign]


def vote_for_shorter_logs() -> None:
    """A member votes for others that lack what it has."""
    Log.is_behind = lambda *_: True  # type: ignore[assignment]


def acknowledge_before_flush() -> None:
    """A member counts what is only in the page cache, although SYNC_FLUSH promises the disk."""
    written = property(lambda self: self._store.written_position)
    MemberLog.safe_position = written  # type: ignore[assignment]

    waiting: set[MemberLog] = set()

    def flush(log: MemberLog) -> None:
        waiting.discard(log)
        log._store.request_flush()

    def pursue(log: MemberLog) -> None:
        log._report_safe()
        if log not in waiting:
            waiting.add(log)
            log._loop.call_later(_LATE_SECONDS, flush, log)

    MemberLog._pursue = pursue  # type: ignore[method-assign]


def keep_a_damaged_log() -> None:
    """A member goes on with a log that lacks something inside."""
    never = property(lambda _: False, lambda *_: None)
    MemberStore.needs_new_log = never  # type: ignore[assignment]


BUGS = {
    bug.__name__: bug
    for bug in (commit_alone, vote_for_shorter_logs, acknowledge_before_flush, keep_a_damaged_log)
}
