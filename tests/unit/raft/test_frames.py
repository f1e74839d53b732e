"""Every message that members send can be sent: it comes out of its frame as it went in."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from rocketpost.codec.group.frames import RaftDecoder, RaftEncoder
from rocketpost.raft.messages import Append
from rocketpost.raft.node import Role
from rocketpost.testing.trace_files import run_trace

from . import group
from .group import Envelope, Group
from .test_traces import TRACES, TracedGroup

_encode = RaftEncoder("g").encode


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let all messages of groups pass through frames; counts them by kind."""
    seen: Counter[str] = Counter()
    post = Group.post

    def post_framed(self: Group, envelope: Envelope) -> None:
        message = envelope.message
        size = message.end - message.prev if isinstance(message, Append) else 0
        ((found, body),) = RaftDecoder("g").feed(_encode(message, size) + bytes(size))
        assert found == message
        assert len(body) == size
        seen[type(found).__name__] += 1
        post(self, envelope._replace(message=found))

    monkeypatch.setattr(group.Group, "post", post_framed)
    return seen


def test_a_stormy_life(kinds: Counter[str]) -> None:
    for seed in range(20):
        storm(Random(seed), Group(seed=seed))
    assert kinds.keys() >= {"PreVote", "PreVoteReply", "Vote", "VoteReply", "Append", "AppendReply"}


def storm(rng: Random, members: Group) -> None:
    """Let messages be lost, repeated and late, members crash, and leaders write."""
    for _ in range(400):
        chance = rng.random()
        if chance < 0.5 and members.network:
            envelope = rng.choice(members.network)
            if rng.random() < 0.1:
                members.network.append(envelope)
            members.deliver(envelope)
        elif chance < 0.55 and members.network:
            members.network.remove(rng.choice(members.network))
        elif chance < 0.57 and len(members.alive) > 2:
            rng.choice(members.alive).crash(power=rng.random() < 0.5)
        elif chance < 0.6:
            for member in members.members.values():
                if member.node is None:
                    member.start()
        elif chance < 0.8:
            for member in members.alive:
                if member.node is not None and member.node.role is Role.LEADER:
                    members.send(member.name, rng.randrange(1, 4))
        else:
            members.tick(rng.choice(members.alive).name, count=rng.randrange(1, 12))


def test_the_lives_that_are_written_down(kinds: Counter[str]) -> None:
    for path in TRACES:
        run_trace(path, TracedGroup().run, rewrite=False)
    assert len(kinds) == 8
