from __future__ import annotations

import pytest

from rocketpost.codec.group.hello import History
from rocketpost.server.group.life.past import find_loss
from rocketpost.store.member.hard_state import LOG_LOST, STATE_LOST

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
