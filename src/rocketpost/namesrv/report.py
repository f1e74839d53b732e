"""The report of a registering broker, and its validation.

Everything from outside is checked here before a table changes. More names are legal than
``model.names`` allows to users: brokers derive topics from host names, which have dots, and from
two names joined by a plus. No name becomes a file name here, so both are harmless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketpost.codec.bodies.registration import RegistrationBody
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import InvalidParameter
from rocketpost.model.names import RETRY_TOPIC_LENGTH_MAX, topic_problem
from rocketpost.model.route import QueueData
from rocketpost.model.topic import TopicConfig

NAME_LENGTH_MAX: Final = RETRY_TOPIC_LENGTH_MAX
QUEUES_MAX: Final = 65_536
"""Maximum of queues of a topic on one broker; clients build a list of that length."""

PERM_MAX: Final = 15
FILTER_SERVERS_MAX: Final = 64

_is_made_by_a_broker = re.compile(r"[%|a-zA-Z0-9_.+-]+").fullmatch
_is_address = re.compile(r"(\[[0-9a-fA-F:.%a-zA-Z_-]+\]|[a-zA-Z0-9._-]+):([0-9]{1,5})").fullmatch


class BrokerIdentity(NamedTuple):
    """One broker process: its cluster, the name it shares with its replicas, its id among them."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """One registration.

    Args:
        identity: The registering broker.
        ha_address: The address from which its replicas fetch the log.
        zone: Its zone, if any.
        timeout_ms: How long it counts as alive afterwards; None for the name server's default.
        acting_master: Whether a slave may act for a lost master; None from brokers before 5.0.
        registration: Its topics.
    """

    identity: BrokerIdentity
    ha_address: str = ""
    zone: str | None = None
    timeout_ms: int | None = None
    acting_master: bool | None = None
    registration: RegistrationBody = field(default_factory=RegistrationBody)


def check_name(name: str, what: str) -> None:
    """Refuse an illegal name.

    Raises:
        InvalidParameter: ``name`` is illegal; the text names ``what``.
    """
    if topic_problem(name) is None:
        return
    if not name.strip():
        raise InvalidParameter(f"the {what} is blank")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidParameter(
            f"the {what} has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
        )
    if not _is_made_by_a_broker(name):
        raise InvalidParameter(
            f"the {what} {name!r} has characters other than % | letters digits _ . + -"
        )


def check_address(address: str, what: str) -> None:
    """Refuse an address that is not ``host:port``.

    Raises:
        InvalidParameter: ``address`` is not; the text names ``what``.
    """
    match = _is_address(address) if len(address) <= NAME_LENGTH_MAX else None
    if match is None or not 0 < int(match[2]) < 65536:
        raise InvalidParameter(f"the {what} {address[:NAME_LENGTH_MAX]!r} is not host:port")


def check_identity(identity: BrokerIdentity) -> None:
    """Refuse a broker with an illegal name, id or address.

    Raises:
        InvalidParameter: Part of the identity is illegal; the text says which.
    """
    check_name(identity.cluster, "cluster name")
    check_name(identity.name, "broker name")
    check_address(identity.address, "broker address")
    if not 0 <= identity.id < 2**63:
        raise InvalidParameter(f"the broker id {identity.id} is not one of 0 to 2^63-1")


def check_report(report: BrokerReport) -> None:
    """Refuse a registration with an illegal name, number or address anywhere in it.

    Raises:
        InvalidParameter: Part of the report is illegal; the text says which, and in which topic.
    """
    check_identity(report.identity)
    if report.ha_address:
        check_address(report.ha_address, "replication address")
    if report.zone is not None:
        check_name(report.zone, "zone name")
    filters = report.registration.filter_server_list
    if len(filters) > FILTER_SERVERS_MAX:
        raise InvalidParameter(
            f"{len(filters)} filter servers are too many; at most {FILTER_SERVERS_MAX} are allowed"
        )
    for server in filters:
        check_address(server, "filter server address")
    for topic, config in report.registration.table.topic_config_table.items():
        _check_topic(topic, config)
    for topic, mapping in report.registration.table.topic_queue_mapping_info_map.items():
        _check_mapping(topic, mapping, report.identity.name)


def check_queues(topic: str, queues: QueueData | TopicConfig) -> None:
    """Refuse illegal queue numbers or permissions.

    Raises:
        InvalidParameter: A number of ``topic`` is out of range; the text says which.
    """
    if not (
        0 <= queues.read_queue_nums <= QUEUES_MAX and 0 <= queues.write_queue_nums <= QUEUES_MAX
    ):
        raise InvalidParameter(
            f"topic {topic}: {queues.read_queue_nums} read and {queues.write_queue_nums} write "
            f"queues are not between 0 and {QUEUES_MAX}"
        )
    if not 0 <= queues.perm <= PERM_MAX:
        raise InvalidParameter(f"topic {topic}: perm {queues.perm} is not one of 0 to {PERM_MAX}")
    if not -(2**31) <= queues.topic_sys_flag < 2**31:
        raise InvalidParameter(f"topic {topic}: the system flag does not fit in 32 bits")


def _check_topic(topic: str, config: TopicConfig) -> None:
    check_name(topic, "topic")
    if config.topic_name not in ("", topic):
        raise InvalidParameter(
            f"the configuration of the topic {topic} names another one, {config.topic_name[:64]!r}"
        )
    check_queues(topic, config)


def _check_mapping(topic: str, mapping: QueueMapping, broker_name: str) -> None:
    check_name(topic, "topic")
    if mapping.topic != topic or mapping.bname != broker_name:
        raise InvalidParameter(f"the queue mapping of topic {topic} is for somebody else")
    if mapping.scope is not None and len(mapping.scope) > NAME_LENGTH_MAX:
        raise InvalidParameter(f"the queue mapping of topic {topic} has too long a scope")
    numbers = (mapping.epoch, mapping.total_queues, *mapping.curr_id_map.values())
    if any(not -(2**63) <= number < 2**63 for number in (*numbers, *mapping.curr_id_map)):
        raise InvalidParameter(f"the queue mapping of topic {topic} has a number beyond 64 bits")
