"""Planted bugs, each of which random schedules must find."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Accept
from rocketpost.raft.core import Log
from rocketpost.raft.follower import Suspicion
from rocketpost.store.member.member_store import MemberStore

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


def lets_a_replaced_member_vote(patch: pytest.MonkeyPatch) -> None:
    class Careless:
        NONE = STATE = Suspicion.NONE

    patch.setattr(servers, "Suspicion", Careless)


def does_not_cut(patch: pytest.MonkeyPatch) -> None:
    change = Server._change

    def skip_cuts(self: Server, waiting: Change) -> None:
        if isinstance(waiting.action, Accept):
            change(self, waiting)
        else:
            self.act(self.node.cut_done(waiting.action.position))

    patch.setattr(Server, "_change", skip_cuts)


@pytest.mark.parametrize(
    "plant",
    [
        acknowledges_before_the_flush,
        does_not_save_votes,
        takes_the_whole_log_for_committed_after_a_start,
        votes_without_looking_at_logs,
        lets_a_replaced_member_vote,
        does_not_cut,
    ],
)
def test_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        group = Group(random.Random(seed), is_harmed=True)
        try:
            group.run(1500)
            group.heal()
            group.check_end()
        except (AssertionError, ReplicationError):
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS} schedules")
