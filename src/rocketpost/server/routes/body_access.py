"""Access rules of requests that name topics and groups in their body, or several in one field."""

from __future__ import annotations

from collections.abc import Iterator

from rocketpost.codec.bodies.assignment import decode_query, decode_request_mode
from rocketpost.codec.bodies.client import (
    decode_client_config_check,
    decode_heartbeat,
    decode_lock_request,
)
from rocketpost.codec.bodies.group import decode_group_change, decode_group_changes
from rocketpost.codec.bodies.pop import decode_batch_ack
from rocketpost.codec.bodies.topic import decode_topic_changes
from rocketpost.codec.command import Command
from rocketpost.codec.headers.offset import ConsumeStats, CorrectionOffset
from rocketpost.server.handlers.replies import read_body
from rocketpost.server.routes.access import (
    CREATE,
    GET,
    SUB,
    UPDATE,
    Access,
    AccessRule,
    Need,
    consumer_needs,
    group_need,
    topic_need,
)


def _heartbeat(command: Command, header: object) -> Iterator[Need]:
    # A producer's heartbeat needs no right: each of its sends is checked.
    for consumer in read_body(command, decode_heartbeat).consumer_data_set:
        yield group_need(consumer.group_name, (SUB,))
        for subscription in consumer.subscription_data_set:
            yield topic_need(subscription.topic, (SUB,))


def _locks(command: Command, header: object) -> Iterator[Need]:
    request = read_body(command, decode_lock_request)
    yield group_need(request.consumer_group, (SUB,))
    for queue in request.mq_set:
        yield topic_need(queue.topic, (SUB,))


def _client_config(command: Command, header: object) -> Iterator[Need]:
    check = read_body(command, decode_client_config_check)
    yield from consumer_needs(check.subscription_data.topic, check.group, (SUB,))


def _assignment(command: Command, header: object) -> Iterator[Need]:
    asked = read_body(command, decode_query)
    yield from consumer_needs(asked.topic, asked.consumer_group, (SUB,))


def _request_mode(command: Command, header: object) -> Iterator[Need]:
    mode = read_body(command, decode_request_mode)
    yield topic_need(mode.topic, (SUB,))
    yield group_need(mode.consumer_group, (UPDATE,))


def _batch_ack(command: Command, header: object) -> Iterator[Need]:
    for ack in read_body(command, decode_batch_ack).acks:
        yield from consumer_needs(ack.t, ack.c, (SUB,))


def _created_topics(command: Command, header: object) -> Iterator[Need]:
    for change in read_body(command, decode_topic_changes):
        yield topic_need(change.topic_name, (CREATE,))


def _created_group(command: Command, header: object) -> Iterator[Need]:
    change = read_body(command, decode_group_change)
    yield group_need(change.group_name, (CREATE,))


def _created_groups(command: Command, header: object) -> Iterator[Need]:
    for change in read_body(command, decode_group_changes):
        yield group_need(change.group_name, (CREATE,))


def _listed_topics(command: Command, header: ConsumeStats) -> Iterator[Need]:
    for name in header.topics:
        yield topic_need(name, (GET,))


def _left_out_groups(command: Command, header: CorrectionOffset) -> Iterator[Need]:
    for name in header.filter_groups.split(","):
        if name.strip():
            yield group_need(name.strip(), (GET,))


HEARTBEAT = Access(
    (AccessRule("each consumer in the body: Group Sub + Topic Sub", (), _heartbeat),),
    may_need_nothing=True,
)
LOCKS = Access((AccessRule("body: Group Sub + each Topic Sub", (), _locks),))
CLIENT_CONFIG = Access((AccessRule("body: Topic Sub + Group Sub", (), _client_config),))
ASSIGNMENT = Access((AccessRule("body: Topic Sub + Group Sub", (), _assignment),))
REQUEST_MODE = Access((AccessRule("body: Topic Sub + Group Update", (), _request_mode),))
BATCH_ACK = Access((AccessRule("each ack in the body: Topic Sub + Group Sub", (), _batch_ack),))
CREATED_TOPICS = Access((AccessRule("each Topic in the body: Create", (), _created_topics),))
CREATED_GROUP = Access((AccessRule("Group in the body: Create", (), _created_group),))
CREATED_GROUPS = Access((AccessRule("each Group in the body: Create", (), _created_groups),))
LISTED_TOPICS = Access(
    (AccessRule("each Topic(topic, topic_list) Get", ("topics",), _listed_topics),)
)
LEFT_OUT_GROUPS = Access(
    (AccessRule("each Group(filter_groups) Get", ("filter_groups",), _left_out_groups),)
)
