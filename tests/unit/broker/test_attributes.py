from __future__ import annotations

import pytest

from rocketpost.broker.attributes import TOPIC_ATTRIBUTES, changed_attributes, parse_changes
from rocketpost.codec.faults import ServerError


def test_changes_are_parsed_with_their_signs() -> None:
    assert parse_changes(" +message.type=FIFO , -reserve.time ") == {
        "+message.type": "FIFO",
        "-reserve.time": "",
    }
    assert parse_changes(None) == {}


@pytest.mark.parametrize(
    "text", ["message.type=FIFO", "+message.type", "-a=b", "+=x", "-", "+a=1,+a=2"]
)
def test_text_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ServerError):
        parse_changes(text)


def test_at_creation_attributes_can_only_be_set() -> None:
    made = changed_attributes(TOPIC_ATTRIBUTES, None, {"+queue.type": "SimpleCQ"})
    assert made == {"queue.type": "SimpleCQ"}
    with pytest.raises(ServerError, match="only RocketMQ has"):
        changed_attributes(TOPIC_ATTRIBUTES, None, {"+queue.type": "BatchCQ"})
    with pytest.raises(ServerError, match="does not exist yet"):
        changed_attributes(TOPIC_ATTRIBUTES, None, {"-message.type": ""})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"+colour": "red"}, "unknown attribute"),
        ({"+message.type": "LOUD"}, "must be"),
        ({"+reserve.time": "86400000"}, "tiered storage"),
        ({"+cleanup.policy": "COMPACTION"}, "only RocketMQ has"),
        ({"+dedup.seconds": "soon"}, "whole number"),
        ({"+queue.type": "SimpleCQ"}, "cannot change"),
        ({"-queue.type": ""}, "cannot change"),
        ({"-reserve.time": ""}, "not set"),
        ({"message.type": "FIFO"}, "must be given once"),
        ({"+message.type": "FIFO", "-message.type": ""}, "must be given once"),
    ],
)
def test_changes_that_are_not_allowed(changes: dict[str, str], reason: str) -> None:
    current = {"queue.type": "BatchCQ"}
    with pytest.raises(ServerError, match=reason):
        changed_attributes(TOPIC_ATTRIBUTES, current, changes)
    assert current == {"queue.type": "BatchCQ"}


def test_changeable_attributes_can_be_changed_and_removed() -> None:
    current = {"message.type": "NORMAL", "queue.type": "BatchCQ"}
    changes = {"-message.type": "", "+reserve.time": "-1", "+queue.type": "BatchCQ"}
    assert changed_attributes(TOPIC_ATTRIBUTES, current, changes) == {
        "queue.type": "BatchCQ",
        "reserve.time": "-1",
    }
