"""State that a consumer reports, and comparisons of such reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rocketpost.codec.bodies.client import CONSUME_TYPES, read_subscription
from rocketpost.codec.bodies.leniency import fill
from rocketpost.codec.bodies.topic import decode_object, parse_queue_table
from rocketpost.model.group import Subscription
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue


class RunningInfo(msgspec.Struct, kw_only=True):
    """The state of one consumer, as it reports it."""

    properties: dict[str, str] = {}
    subscriptions: list[Subscription] = []
    queues: dict[MessageQueue, dict[str, Any]] = {}
    rates: dict[str, dict[str, Any]] = {}
    stacks: str = ""

    @property
    def pops(self) -> bool:
        """Whether it receives by POP from every queue, as gRPC clients do, and has none alone."""
        return self.properties.get("PROP_CONSUME_TYPE") == CONSUME_TYPES[2]


def decode_running_info(data: bytes) -> RunningInfo:
    """Read the answer to GET_CONSUMER_RUNNING_INFO.

    Raises:
        RemoteProtocolError: The bytes are not such an answer.
    """
    plain = decode_object(data)
    subscriptions = fill(list[dict[str, Any]], plain.get("subscriptionSet") or [])
    queues = parse_queue_table(plain.get("mqTable") or {})
    return RunningInfo(
        properties=fill(dict[str, str], plain.get("properties") or {}),
        subscriptions=sorted(map(read_subscription, subscriptions), key=lambda each: each.topic),
        queues={queue: fill(dict[str, Any], value) for queue, value in queues.items()},
        rates=fill(dict[str, dict[str, Any]], plain.get("statusTable") or {}),
        stacks=fill(str, plain.get("jstack") or ""),
    )


def have_same_subscriptions(infos: Sequence[RunningInfo]) -> bool:
    """Return whether all consumers of a group have the same subscriptions, as they must."""
    subscriptions = [
        {(each.topic, each.expression_type, each.sub_string) for each in info.subscriptions}
        for info in infos
    ]
    return all(each == subscriptions[0] for each in subscriptions)


def find_rebalance_problems(
    infos: Mapping[str, RunningInfo], queues: Mapping[str, Sequence[MessageQueue]]
) -> list[str]:
    """Return a line for each queue that no consumer has, or more than one.

    Args:
        infos: Every consumer of a group, by client id.
        queues: The queues of every topic that they read.
    """
    problems: list[str] = []
    if any(info.pops for info in infos.values()):
        return problems
    for topic in sorted(queues):
        for queue in queues[topic]:
            owners = sorted(client for client, info in infos.items() if queue in info.queues)
            if len(owners) != 1:
                who = f"{len(owners)} consumers ({', '.join(owners)})" if owners else "no consumer"
                problems.append(f"{topic} queue {queue.queue_id} of {queue.broker_name}: {who}")
    return problems


def list_topics(infos: Sequence[RunningInfo]) -> list[str]:
    """Return the topics that consumers read, retry topics left out."""
    topics = {each.topic for info in infos for each in info.subscriptions}
    return sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX))
