from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from random import Random

import pytest

from rocketpost.codec.group.hello import History
from rocketpost.raft.actions import Action, SaveState, Send
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.messages import Append, AppendReply, MemberRecord, Members, TermSpan
from rocketpost.raft.node import RaftNode
from rocketpost.server.group.life.past import Past, find_loss
from rocketpost.server.group.roster import Roster
from rocketpost.server.settings.group import GroupConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.member.hard_state import LOG_LOST, STATE_LOST
from rocketpost.store.member.member_store import MemberStore
from rocketpost.testing.clock import FakeClock

OWN = History(term=7, end=5000, saves=40)


@pytest.mark.parametrize(
    ("remembered", "teller_term", "kind"),
    [
        (History(), 9, None),
        (History(term=7, end=5000, saves=40), 7, None),
        (History(term=8), 7, STATE_LOST),
        (History(saves=41), 7, STATE_LOST),
        (History(term=7, end=5001), 7, LOG_LOST),
        (History(end=5001), 8, LOG_LOST),
        # The leader of an older term does not know that the log was cut since.
        (History(term=6, end=9000), 6, None),
    ],
)
def test_what_a_member_has_lost(remembered: History, teller_term: int, kind: int | None) -> None:
    loss = find_loss(OWN, remembered, History(term=teller_term, end=10_000))
    assert (loss.kind if loss is not None else None) == kind
    assert loss is None or loss.reason


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemberStore]:
    config = StoreConfig(root=str(tmp_path), segment_bytes=64 * 1024, message_bytes_max=4096)
    member = MemberStore.open_blocking(config, clock=FakeClock())
    yield member
    member.close_blocking()


def make_past(
    store: MemberStore, suspicion: Suspicion
) -> tuple[Past, RaftNode, list[Awaitable[None]]]:
    node = RaftNode(
        "n0",
        config=RaftConfig(),
        chance=Random(1),
        term=5,
        end=100,
        spans=[TermSpan(5, 0)],
        members=[MemberRecord(0, Members(frozenset({"n0", "n1"})))],
        suspicion=suspicion,
    )
    work: list[Awaitable[None]] = []
    past = Past(
        node,
        store,
        others=["n1"],
        roster=Roster(
            GroupConfig(enabled=True, group="g", peers="n0-h0:1;n1-h1:1", node="n0"), store
        ),
        carry_out=lambda actions: None,
        later=work.append,
    )
    return past, node, work


@pytest.mark.parametrize("suspicion", [Suspicion.NONE, Suspicion.STATE])
async def test_a_number_of_saves_is_remembered_once(
    store: MemberStore, suspicion: Suspicion
) -> None:
    """Also by a member that knows already that it has lost them: it may be repaired later."""
    store.save_vote_blocking(5, None)
    if suspicion is Suspicion.STATE:
        store.doubt_blocking()
    past, _, work = make_past(store, suspicion)
    leader = History(term=5, end=100)
    past.note_history("n1", leader, History(term=5, saves=40))
    past.note_history("n1", leader, History(term=5, saves=39))
    await asyncio.gather(*work)
    assert store.state.suspect == STATE_LOST
    assert store.save_count == 40

    store.clear_suspicion_blocking()
    past, node, work = make_past(store, Suspicion.NONE)
    past.note_history("n1", leader, History(term=5, saves=40))
    assert not work
    assert not node.is_suspect


async def test_a_member_that_has_lost_its_log_may_have_lost_its_vote_too(
    store: MemberStore,
) -> None:
    """As when its machine was restored from a snapshot: its own files show the first loss only."""
    store.save_vote_blocking(5, None)
    store.doubt_blocking(LOG_LOST)
    past, node, work = make_past(store, Suspicion.LOG)

    def hear(suspect: int = 0) -> list[Action]:
        found = node.step("n1", Append(5, 100, 5, 100, commit=100, suspect=suspect, bar=100))
        saves = [each.number for each in found if isinstance(each, SaveState)]
        return [*found, *(action for number in saves for action in node.state_saved(number))]

    leader = History(term=5, end=100)
    past.note_history("n1", leader, History(term=5, end=200))
    assert not work, "it is known"
    past.note_history("n1", leader, History(term=6))
    past.note_history("n1", leader, History(term=6))
    await asyncio.gather(*work)
    assert len(work) == 1
    assert store.state.suspect == STATE_LOST

    (reply,) = (each.message for each in hear() if isinstance(each, Send))
    assert isinstance(reply, AppendReply)
    hear(reply.suspect)
    assert node.is_suspect, "it has its log back, but may have voted for another leader"


async def test_a_loss_that_is_found_right_after_a_repair_stays_saved(store: MemberStore) -> None:
    store.save_vote_blocking(5, None)
    store.doubt_blocking(LOG_LOST)
    past, node, work = make_past(store, Suspicion.NONE)  # it is repaired
    repair = asyncio.create_task(past.save_repair())
    past.note_history("n1", History(term=5, end=100), History(term=6))
    assert node.is_suspect
    await asyncio.gather(repair, *work)
    assert store.state.suspect == STATE_LOST

    past, _, _ = make_past(store, Suspicion.NONE)
    await past.save_repair()
    assert not store.state.suspect
