"""A member's log, terms and promises, stopped at any file operation or damaged anywhere."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest

from rocketpost.errors import StoreError
from rocketpost.model.members import Configuration, Member
from rocketpost.store.member.group_records import TermRecord, draft_members, scan_group_records
from rocketpost.store.member.member_store import MemberStore
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import HOST, Clock, PowerCut, World, formatted, small

ONE = (Member("n0", "a:1"),)
TWO = (*ONE, Member("n1", "a:2", is_voter=False))


def _state_members(member: MemberStore, members: tuple[Member, ...]) -> Configuration:
    """Append a record that states the members of the group."""
    member.store.append(draft_members(members, host=HOST, now_ms=1))
    member.store.commit()
    member.store._flusher.flush_blocking()
    return Configuration(member.store.end_position, members)


class Story:
    """A member with a history: committed terms, then an uncommitted tail of several terms."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        member, _ = self.build()
        self.old_end = member.store.end_position
        self.commit = member.state.commit
        self.spans = member.spans
        self.state = member.state
        tail = [span.start for span in self.spans if span.start >= self.commit]
        self.position = random.Random(seed).choice(tail)

    def build(self) -> tuple[MemberStore, SimulatedDisk]:
        """Return the member and its disk before anything happens; the same each time."""
        rng = random.Random(self.seed)
        disk = formatted()
        member = _open(disk)
        world = World(disk=disk)
        world.store = member.store
        term = 0
        for number in range(rng.randrange(4, 9)):
            term += rng.randrange(1, 4)
            member.save_vote_blocking(term, rng.choice(["n0", "n1"]))
            member.begin_term_blocking(term, "n0", HOST)
            world.send(rng, rng.choice([0, 1, 4, 9]))
            member.store._flusher.flush_blocking()
            if number < 2:
                if number == 0:
                    member.save_members_blocking([_state_members(member, ONE)])
                end = member.store.end_position
                member.store.set_ceiling(end)
                member.store.confirm(end)
                member.save_progress_blocking(end, end)
                if rng.random() < 0.5:
                    member.store.save_blocking()
        known = member.state.configurations[-1]
        member.save_members_blocking([known, _state_members(member, TWO)])
        member.save_progress_blocking(member.state.commit, member.store.end_position)
        return member, disk

    def run(self, call: int | None, rng: random.Random | None, again: int | None = None) -> bool:
        """Cut the log, stopped at a call; False if it was done before that."""
        member, disk = self.build()
        is_done = _runs(disk, call, lambda: member.cut_blocking(self.position))
        disk = _stop(disk, rng)
        if again is not None:
            _runs(disk, again, lambda: _open(disk))
            disk = _stop(disk, rng)
        self.check(disk, is_done)
        return not is_done

    def check(self, disk: SimulatedDisk, is_done: bool) -> None:
        """Open the member again: log, terms and members are all cut, or none of them is."""
        member = _open(disk)
        assert not member.suspicions
        end = member.store.end_position
        assert end in ([self.position] if is_done else [self.position, self.old_end])
        assert member.spans == tuple(span for span in self.spans if span.start < end)
        self._check_promises(member)
        known = [each.position for each in member.state.configurations]
        assert known[-1] <= end
        assert len(known) == (2 if end == self.old_end else 1)
        assert member.store.confirmed_position == self.commit
        found = scan_group_records(member.store, 0, end)
        stated = [(each.term, each.start) for each in found if isinstance(each, TermRecord)]
        assert tuple(stated) == member.spans
        # Life goes on with another leader.
        member.save_vote_blocking(member.state.term + 1, "n2")
        member.begin_term_blocking(member.state.term, "n2", HOST)
        member.store.commit()
        member.store._flusher.flush_blocking()
        spans = member.spans
        member = _open(disk.after_power_cut(random.Random(self.seed)))
        assert member.spans == spans
        assert not member.suspicions

    def _check_promises(self, member: MemberStore) -> None:
        assert member.state.term == self.state.term
        assert member.state.vote == self.state.vote
        assert member.state.commit == self.commit


def _open(disk: SimulatedDisk) -> MemberStore:
    return MemberStore.open_blocking(small(), clock=Clock(), files=disk)


def _runs(disk: SimulatedDisk, call: int | None, work: Any) -> bool:
    """Do something until a call is reached; True if it came to its end."""
    stop = None if call is None else disk.calls + call

    def fault(number: int, _name: str, _path: str) -> None:
        if stop is not None and number >= stop:
            raise PowerCut

    disk.fault = fault
    try:
        work()
    except PowerCut:
        return False
    finally:
        disk.fault = None
    return True


def _stop(disk: SimulatedDisk, rng: random.Random | None) -> SimulatedDisk:
    return disk.after_kill() if rng is None else disk.after_power_cut(rng)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_log_and_terms_are_both_cut_or_neither(seed: int, rng: random.Random, how: str) -> None:
    story = Story(seed)
    chance = rng if how == "power" else None
    assert not story.run(None, chance)
    for call in itertools.count(rng.randrange(1, 40), 40):
        if not story.run(call, chance):
            break
        story.run(call, chance, again=rng.randrange(1, 120))


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_cut_stopped_at_every_operation(seed: int, rng: random.Random, how: str) -> None:
    story = Story(seed)
    chance = rng if how == "power" else None
    for call in itertools.count(1):
        if not story.run(call, chance):
            break
        story.run(call, chance, again=rng.randrange(1, 120))


def test_an_operation_of_a_cut_that_fails(seed: int, rng: random.Random) -> None:
    story = Story(seed)
    for code in (5, 28):
        member, disk = story.build()
        failing = disk.calls + rng.randrange(1, 60)
        disk.fault = lambda number, name, path, at=failing, code=code: (
            code if number == at else None
        )
        is_done = False
        with contextlib.suppress(StoreError):
            member.cut_blocking(story.position)
            is_done = True
        disk.fault = None
        story.check(disk.after_kill(), is_done=is_done)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_life_stopped_anywhere(seed: int, rng: random.Random, how: str) -> None:
    """Terms, votes, appends and progress, stopped at any operation: nothing promised is lost."""
    chance = rng if how == "power" else None
    for _ in range(2):
        disk = formatted()
        promises: dict[str, Any] = {"end": 0, "spans": (), "state": None}
        call = rng.randrange(1, 700)
        _runs(disk, call, lambda disk=disk, promises=promises: _live(disk, seed, promises))
        disk = _stop(disk, chance)
        if rng.random() < 0.5:
            _runs(disk, rng.randrange(1, 150), lambda disk=disk: _open(disk))
            disk = _stop(disk, chance)
        member = _open(disk)
        assert not member.suspicions
        assert member.store.end_position >= promises["end"]
        kept = [span for span in promises["spans"] if span[1] < promises["end"]]
        assert list(member.spans)[: len(kept)] == kept
        state = promises["state"]
        if state is not None:
            assert member.state.term >= state.term
            assert member.state.term > state.term or state.vote in (None, member.state.vote)
            assert member.state.commit >= state.commit
            assert member.store.confirmed_position >= state.commit
        found = scan_group_records(member.store, 0, member.store.end_position)
        stated = [(each.term, each.start) for each in found if isinstance(each, TermRecord)]
        assert tuple(stated) == member.spans


def _live(disk: SimulatedDisk, seed: int, promises: dict[str, Any]) -> None:
    rng = random.Random(seed)
    member = _open(disk)
    world = World(disk=disk)
    world.store = member.store
    for term in range(1, 8):
        member.save_vote_blocking(term, "n0")
        promises["state"] = member.state
        member.begin_term_blocking(term, "n0", HOST)
        world.send(rng, rng.choice([0, 1, 4, 9]))
        member.store._flusher.flush_blocking()
        promises["end"], promises["spans"] = member.store.durable_position, member.spans
        if rng.random() < 0.5:
            end = member.store.durable_position
            member.store.set_ceiling(end)
            member.store.confirm(end)
            member.save_progress_blocking(end, end)
            promises["state"] = member.state


def test_a_flipped_bit_is_repaired_or_makes_the_member_suspect(
    seed: int, rng: random.Random
) -> None:
    """One bit of any file, anywhere: the member has all that it promised, or it is suspect."""
    story = Story(seed)
    _, disk = story.build()
    disk = disk.after_kill()
    for _ in range(4):
        harmed = disk.copy()
        path = rng.choice([path for path in harmed.paths() if harmed.read_bytes(path)])
        harmed.flip(path, rng.randrange(8 * len(harmed.read_bytes(path))))
        _check_harmed(story, harmed, path)


@pytest.mark.parametrize("how", ["lost", "short", "zeros"])
def test_a_lost_or_cut_file_is_repaired_or_makes_the_member_suspect(
    seed: int, rng: random.Random, how: str
) -> None:
    story = Story(seed)
    _, disk = story.build()
    disk = disk.after_kill()
    for _ in range(2):
        harmed = disk.copy()
        path = rng.choice([path for path in harmed.paths() if harmed.read_bytes(path)])
        size = len(harmed.read_bytes(path))
        if how == "lost":
            harmed.lose(path)
        elif how == "short":
            harmed.cut_short(path, rng.randrange(size))
        else:
            harmed.zero(path, rng.randrange(size), size)
        _check_harmed(story, harmed, path)


def _check_harmed(story: Story, harmed: SimulatedDisk, path: str) -> None:
    try:
        member = _open(harmed)
    except StoreError:
        return  # refused aloud
    if member.suspicions:
        assert member.state.suspect
        assert _open(harmed.after_kill()).state.suspect, path
        return
    assert member.store.end_position == story.old_end, path
    assert member.spans == story.spans, path
    assert member.state == story.state, path
