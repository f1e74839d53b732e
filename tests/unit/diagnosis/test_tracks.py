from __future__ import annotations

import pytest

from diagnosis.samples import make_message
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.diagnosis.tracks import TrackType, judge_track
from rocketpost.model.group import SQL92, Subscription, parse_tags
from rocketpost.model.route import MessageQueue


def state(offset: int, broker: str = "broker-a", queue_id: int = 1) -> ConsumeState:
    queue = MessageQueue(broker, queue_id, "Demo")
    return ConsumeState(queues={queue: QueueProgress(broker_offset=9, consumer_offset=offset)})


def group(tags: str = "*", **members: str) -> ConsumerConnections:
    table = {"Demo": parse_tags("Demo", tags, version=0)}
    return ConsumerConnections(subscription_table=table, **members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("connections", "progress", "expected"),
    [
        (group(), state(6), TrackType.CONSUMED),
        (group(), state(5), TrackType.NOT_CONSUME_YET),  # 5 is the next one to be consumed
        (group(), state(6, queue_id=2), TrackType.NOT_CONSUME_YET),
        (group(), state(6, broker="broker-b"), TrackType.NOT_CONSUME_YET),
        (group("A || paid"), state(6), TrackType.CONSUMED),
        (group("A || B"), state(6), TrackType.CONSUMED_BUT_FILTERED),
        (group("A || B"), state(5), TrackType.NOT_CONSUME_YET),
        (group(consume_type="CONSUME_ACTIVELY"), state(6), TrackType.PULL),
        (group(message_model="BROADCASTING"), state(6), TrackType.CONSUME_BROADCASTING),
    ],
)
def test_the_track_of_a_message(
    connections: ConsumerConnections,
    progress: ConsumeState,
    expected: TrackType,
) -> None:
    assert judge_track(make_message(TAGS="paid"), connections, progress) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 1", TrackType.CONSUMED),
        ("a > 2", TrackType.CONSUMED_BUT_FILTERED),
        ("MATCHES('kept by a broker')", TrackType.CONSUMED),
    ],
)
def test_an_expression_is_judged_if_it_can_be(text: str, expected: TrackType) -> None:
    sql = Subscription(topic="Demo", sub_string=text, expression_type=SQL92)
    connections = ConsumerConnections(subscription_table={"Demo": sql})
    assert judge_track(make_message(a="2"), connections, state(6)) is expected


def test_a_message_found_by_its_offset_id_names_no_broker() -> None:
    assert judge_track(make_message(broker=""), group(), state(6)) is TrackType.CONSUMED
