"""Planted bugs, each of which random schedules must find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Accept
from rocketpost.raft.core import Log
from rocketpost.raft.follower import Suspicion
from rocketpost.server.group.life import log_scrub
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.recovery import recovery

from . import servers
from .group import Group
from .servers import Change, Server

SEEDS = 100
Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledges_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    def flush(self: Server) -> None:
        if not self._changes:
            self.act(self.node.persisted(self.node.log.end, self.node.cuts))

    patch.setattr(Server, "flush", flush)


def does_not_save_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberStore, "save_vote_blocking", lambda *_: None)


def takes_the_whole_log_for_committed_after_a_start(patch: pytest.MonkeyPatch) -> None:
    start = Server.start

    def start_wrongly(self: Server) -> None:
        start(self)
        self.node.log.commit = self.node.log.end

    patch.setattr(Server, "start", start_wrongly)


def votes_without_looking_at_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_behind", lambda *_: True)


def lets_a_suspect_member_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(servers, "SUSPICIONS", dict.fromkeys(range(4), Suspicion.NONE))


def keeps_a_damaged_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        MemberStore, "needs_new_log", property(lambda _: False, lambda *_: None), raising=False
    )


def takes_damage_for_a_torn_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "find_written_end", lambda *_, **__: None)


def repairs_old_log_from_a_minority(patch: pytest.MonkeyPatch) -> None:
    def choose_any(digests: dict[str, bytes], voters: object) -> bytes | None:
        counts = Counter(digests.values())
        return min(counts, key=lambda digest: counts[digest]) if counts else None

    patch.setattr(log_scrub, "choose_right", choose_any)


def forgets_the_offsets_of_idle_queues(patch: pytest.MonkeyPatch) -> None:
    reset = servers.reset_log_blocking

    def reset_wrongly(*args: Any, starts: object, **named: Any) -> None:
        reset(*args, **named)

    patch.setattr(servers, "reset_log_blocking", reset_wrongly)


def does_not_cut(patch: pytest.MonkeyPatch) -> None:
    change = Server._change

    def skip_cuts(self: Server, waiting: Change) -> None:
        if isinstance(waiting.action, Accept):
            change(self, waiting)
        else:
            self.act(self.node.cut_done(waiting.action.position))

    patch.setattr(Server, "_change", skip_cuts)


CHANGING = (forgets_the_offsets_of_idle_queues,)
"""Bugs that show only in groups whose members change and whose old log expires."""


@pytest.mark.parametrize(
    "plant",
    [
        acknowledges_before_the_flush,
        does_not_save_votes,
        takes_the_whole_log_for_committed_after_a_start,
        votes_without_looking_at_logs,
        pytest.param(lets_a_suspect_member_vote, marks=pytest.mark.long),
        keeps_a_damaged_log,
        pytest.param(takes_damage_for_a_torn_write, marks=pytest.mark.long),
        repairs_old_log_from_a_minority,
        pytest.param(forgets_the_offsets_of_idle_queues, marks=pytest.mark.long),
        pytest.param(does_not_cut, marks=pytest.mark.long),
    ],
)
def test_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        group = Group(random.Random(seed), is_harmed=True, is_changing=plant in CHANGING)
        try:
            group.run(1500)
            group.heal()
            group.check_end()
        except (AssertionError, ReplicationError):
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS} schedules")
