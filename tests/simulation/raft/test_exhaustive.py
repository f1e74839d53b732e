"""Every order of a few events in groups of three nodes keeps the promises; see ``exhaustive``."""

from __future__ import annotations

import pytest

from . import bugs
from .checks import Violation
from .exhaustive import Model, explore


def new_group() -> Model:
    """Return a group that has never had a leader."""
    return Model(timeouts=2, writes=1, cuts=1)


def led_group() -> Model:
    """Return a group with a leader and a committed message."""
    model = Model(timeouts=2, writes=2, cuts=1)
    model.lose_patience("a")
    model.settle()
    model.write("a")
    model.settle()
    assert model.servers["a"].commit == model.servers["a"].log.end > 0
    return model


def test_a_new_group() -> None:
    assert explore(new_group(), depth=4) > 500


def test_a_group_with_a_leader() -> None:
    assert explore(led_group(), depth=5) > 500


@pytest.mark.parametrize(
    "plant",
    [bugs.own_fsync_not_awaited, bugs.vote_not_saved, bugs.vote_sent_before_it_is_saved],
)
def test_bugs_are_found_within_a_few_steps(
    plant: bugs.Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = led_group()
    plant(monkeypatch)
    with pytest.raises(Violation) as caught:
        explore(model, depth=5)
    assert caught.value.__notes__
