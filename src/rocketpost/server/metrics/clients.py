"""The metric families of connected clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocketpost.broker.group.membership import Membership
from rocketpost.model.client_version import version_text
from rocketpost.model.names import is_system_group
from rocketpost.server.metrics.exposition import Family, Labels, Sample, flag, gauge

_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
_REMOTING: Final = "remoting"
_PRODUCER: Final = Labels("language", "version", "protocol_type")
_CONSUMER: Final = Labels(
    "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"
)


def client_families(membership: Membership) -> Iterator[Family]:
    """Return the numbers of producers and consumers."""
    producers = Counter(
        (member.client.language.lower(), version_text(member.client.version).lower())
        for members in membership.producers.values()
        for member in members.values()
    )
    yield gauge(
        "rocketmq_producer_connections",
        "Connected producers.",
        [Sample(_PRODUCER(*key, _REMOTING), count) for key, count in producers.items()],
    )
    consumers = Counter(
        (
            name,
            member.client.language.lower(),
            version_text(member.client.version).lower(),
            _MODES.get(group.consume_type, "unknown"),
        )
        for name, group in membership.consumers.items()
        for member in group.members.values()
    )
    yield gauge(
        "rocketmq_consumer_connections",
        "Connected consumers.",
        [
            Sample(_CONSUMER(*key, _REMOTING, flag(is_system_group(key[0]))), count)
            for key, count in consumers.items()
        ],
    )
