"""Evidence in the key index about transactions that are not in memory."""

from __future__ import annotations

from pathlib import Path

from rocketpost.broker.transaction.evidence import Evidence
from rocketpost.broker.transaction.log import Identity, identity_of
from rocketpost.model.names import CHECK_MAX_TOPIC

from ..transaction_world import COMMIT, TOPIC, World


def test_a_commit_is_known_by_its_identity(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.end(world.send("a"), COMMIT)
    world.send("b")
    evidence = Evidence(world.store)
    first, second = (identity_of(record, record.properties) for record in world.halves())
    found = evidence.commit_of(TOPIC, first)
    assert found is not None
    assert found.properties["UNIQ_KEY"] == "a"
    assert evidence.is_available
    assert evidence.commit_of(TOPIC, second) is None
    assert evidence.commit_of("other", first) is None
    assert evidence.commit_of(TOPIC, Identity("a", first.born_ms + 1)) is None
    assert not evidence.was_discarded(second)
    world.close()


def test_a_plain_message_with_the_same_id_is_not_a_commit(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.send("a")
    [half] = world.halves()
    draft = world.transactions.op_draft([1])
    draft.topic, draft.keys, draft.properties = TOPIC, ("a",), half.properties_bytes
    draft.born_ms, draft.born_host = half.born_ms, half.born_host_bytes
    world.put([draft])
    assert Evidence(world.store).commit_of(TOPIC, identity_of(half, half.properties)) is None
    world.close()


def test_a_resumed_half_no_longer_counts_as_discarded(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.transactions.rules = world.rules._replace(check_max=1)
    world.send("a")
    world.later(6000)
    world.later(30_000)
    [record] = world.records(CHECK_MAX_TOPIC)
    whose = identity_of(record, record.properties)
    assert Evidence(world.store).was_discarded(whose)
    world.put([world.transactions.resume(record.position)])
    assert not Evidence(world.store).was_discarded(whose)
    world.close()


def test_without_an_index_nothing_is_found(tmp_path: Path) -> None:
    world = World(tmp_path / "store", index=False)
    world.end(world.send("a"), COMMIT)
    [half] = world.halves()
    evidence = Evidence(world.store)
    assert not evidence.is_available
    assert evidence.commit_of(TOPIC, identity_of(half, half.properties)) is None
    world.close()
