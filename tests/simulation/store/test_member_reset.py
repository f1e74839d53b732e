"""A replacement of a member's log, stopped at any file operation, leaves the old one or the new."""

from __future__ import annotations

import itertools
import random

import pytest

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.member.reset import reset_log_blocking
from rocketpost.testing.sim.disk import SimulatedDisk

from .test_member_store import TWO, Story, _open, _runs, _stop
from .world import HOST, World, small

SPANS = ((1, 0), (50, 9000))


class Replacement(Story):
    """A member with a history, whose log is replaced."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first = (self.old_end // 8192 + 2) * 8192

    def closed(self) -> SimulatedDisk:
        member, disk = self.build()
        if self.seed % 2:
            member.close_blocking()
        return disk.after_kill()

    def replace(self, disk: SimulatedDisk) -> None:
        reset_log_blocking(
            small(),
            disk,
            first=self.first,
            spans=SPANS,
            members=Configuration(9000, TWO),
            on_reset=lambda position: None,
        )

    def check_either(self, disk: SimulatedDisk, is_done: bool) -> None:
        member = _open(disk)
        assert not member.suspicions
        store = member.store
        if not is_done and store.end_position == self.old_end:
            assert member.spans == self.spans
            assert member.state == self.state
            return
        assert store.first_position == store.end_position == self.first
        assert store.confirmed_position == self.first
        assert member.spans == SPANS
        assert member.state.term == max(50, self.state.term)
        assert member.state.commit == self.first
        assert not list(store.queues)
        self.grow(member, disk)

    def grow(self, member: MemberStore, disk: SimulatedDisk) -> None:
        """Let it lead, and lose power: nothing of the old log comes back."""
        term = member.state.term + 1
        member.save_vote_blocking(term, "n0")
        member.begin_term_blocking(term, "n0", bytes(8))
        end = member.store.commit()
        member.store._flusher.flush_blocking()
        again = _open(disk.after_power_cut(random.Random(self.seed)))
        assert not again.suspicions
        assert again.spans == (*SPANS, (term, self.first))
        assert again.store.end_position == end


def run(story: Replacement, call: int | None, rng: random.Random | None, again: int | None) -> bool:
    disk = story.closed()
    is_done = _runs(disk, call, lambda: story.replace(disk))
    disk = _stop(disk, rng)
    if again is not None:
        _runs(disk, again, lambda: _open(disk))
        disk = _stop(disk, rng)
    story.check_either(disk, is_done)
    return not is_done


@pytest.mark.parametrize("how", ["kill", "power"])
def test_the_log_is_replaced_or_not(seed: int, rng: random.Random, how: str) -> None:
    story = Replacement(seed)
    chance = rng if how == "power" else None
    run(story, None, chance, None)
    for call in itertools.count(rng.randrange(1, 60), 60):
        if not run(story, call, chance, None):
            break
        run(story, call, chance, rng.randrange(1, 150))


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_replacement_stopped_at_every_operation(seed: int, rng: random.Random, how: str) -> None:
    story = Replacement(seed)
    chance = rng if how == "power" else None
    for call in itertools.count(1):
        if not run(story, call, chance, None):
            break
        run(story, call, chance, rng.randrange(1, 150))


def test_an_operation_of_a_replacement_that_fails(seed: int, rng: random.Random) -> None:
    story = Replacement(seed)
    for code in (5, 28):
        disk = story.closed()
        failing = disk.calls + rng.randrange(1, 90)
        disk.fault = lambda number, name, path, at=failing, code=code: (
            code if number == at else None
        )
        is_done = False
        try:
            story.replace(disk)
            is_done = True
        except StoreError:
            pass
        disk.fault = None
        story.check_either(disk.after_kill(), is_done)


def leaders_bytes(story: Replacement, rng: random.Random) -> tuple[int, bytes]:
    """Return a term, and bytes of its leader from the beginning of the new log on."""
    disk = story.closed()
    story.replace(disk)
    leader = _open(disk)
    world = World(disk=disk)
    world.store = leader.store
    term = leader.state.term + 1
    leader.save_vote_blocking(term, "n0")
    leader.begin_term_blocking(term, "n0", HOST)
    world.send(rng, 9)
    end = leader.store.commit()
    view = leader.store.view(Position(story.first), end - story.first)
    assert view is not None
    return term, bytes(view)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_new_log_that_was_never_flushed(seed: int, rng: random.Random, how: str) -> None:
    """The member opens again, wherever it was stopped, and goes on with its leader's bytes."""
    story = Replacement(seed)
    term, data = leaders_bytes(story, rng)
    starts, end = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
    ends = [*starts, end]
    for call in [*range(rng.randrange(1, 20), 80, 20), None]:
        disk = story.closed()
        story.replace(disk)

        def follow(disk: SimulatedDisk = disk) -> None:
            member = _open(disk)
            member.save_vote_blocking(term, None)
            member.note_terms_blocking([(term, story.first)])
            for begin, stop in itertools.pairwise(ends):
                member.store.append_raw(Position(story.first + begin), data[begin:stop])
                if rng.random() < 0.3:
                    member.store.set_ceiling(Position(story.first + stop))
                    member.store.confirm(Position(story.first + stop))

        _runs(disk, call, follow)
        disk = _stop(disk, rng if how == "power" else None)
        member = _open(disk)
        assert not member.suspicions
        store = member.store
        assert store.first_position == story.first
        kept = store.end_position - story.first
        assert kept in ends
        member.save_vote_blocking(term, None)
        member.note_terms_blocking([(term, story.first)])
        if kept < end:
            store.append_raw(store.end_position, data[kept:end])
        store._flusher.flush_blocking()
        member = _open(disk.after_power_cut(rng))
        assert not member.suspicions
        view = member.store.view(Position(story.first), end)
        assert view is not None
        assert bytes(view) == data[:end]
