from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.proxy.handles import TransactionId, parse_handle, parse_transaction_id
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.wire.enums import Code

RECEIPT = "7 1700000000000 60000 3 0 broker-a 2 9"


def test_a_handle_is_a_receipt_and_a_position() -> None:
    handle = parse_handle(f"{RECEIPT} 4096")
    assert str(handle) == f"{RECEIPT} 4096"
    assert handle.position == 4096
    assert handle.place == ("broker-a", 0, 2, 9)
    assert handle.visible_at_ms == 1_700_000_060_000


def test_a_handle_may_lack_the_position() -> None:
    assert parse_handle(RECEIPT).position is None
    assert str(parse_handle(RECEIPT)) == RECEIPT


@given(st.text(max_size=80) | st.just(f"{RECEIPT} -1") | st.just(f"{RECEIPT} {'9' * 30}"))
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_handle(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


@given(
    st.text(st.characters(codec="ascii", exclude_characters=" "), min_size=1),
    st.integers(0, 10**17),
    st.integers(0, 10**17),
    st.text(),
)
def test_a_transaction_id_says_where_the_half_is(
    broker: str, offset: int, position: int, message_id: str
) -> None:
    half = TransactionId(broker, offset, position, message_id)
    assert parse_transaction_id(str(half)) == half


@given(st.text(max_size=80))
def test_other_transaction_ids_are_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_transaction_id(text)
    assert refused.value.code == Code.INVALID_TRANSACTION_ID
