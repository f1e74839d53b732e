"""The open slot: everything in order of due times, whenever it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.timer.slot import OpenSlot, SlotEntry
from rocketpost.store.timer.values import Cursor

SLOT = 1_700_000_000_000
BASE = 5200
PLACES = st.sets(
    st.builds(
        SlotEntry,
        st.integers(SLOT, SLOT + 1000),
        st.integers(0, 50).map(lambda number: BASE + 52 * number),
    ),
    max_size=20,
)


@given(chained=PLACES, late=PLACES, done=st.integers(0, 5))
def test_messages_leave_the_slot_in_order_and_once(
    chained: set[SlotEntry], late: set[SlotEntry], done: int
) -> None:
    order = sorted(chained)
    cursor = Cursor(*order[done - 1]) if 0 < done <= len(order) else Cursor()
    left = [place for place in order if place > tuple(cursor)]
    slot = OpenSlot(SLOT, iter(()), base=BASE)
    for place in chained:
        slot.add(place)
    slot.finish_loading(cursor)
    for place in late - chained:
        slot.add_late(place)
    assert len(slot) == len(left) + len(late - chained)
    came = [slot.pop() for _ in range(len(slot))]
    assert came == sorted([*left, *(late - chained)])
    assert slot.first() is None
    slot.put_back(came)
    assert slot.first() == (came[0] if came else None)
