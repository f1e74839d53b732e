"""Names of topics and groups: legal names, and names reserved for the system.

Names become directories, so every name from outside is checked here first.
"""

from __future__ import annotations

import re
from typing import Final

TOPIC_LENGTH_MAX: Final = 127
RETRY_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Followed by a broker name: a topic whose route lists the members of the broker's group."""
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REPLICATED_TABLES_TOPIC: Final = "rmq_sys_REPLICATED_TABLES"
"""Records of a group that elects its leader: terms, members and changes of tables."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
NO_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        REPLICATED_TABLES_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
_WORK_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, REPLICATED_TABLES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC}
)
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

_is_legal = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch


def topic_problem(topic: str) -> str | None:
    """Return why ``topic`` is not a legal topic name, or None."""
    if not topic.strip():
        return "the topic is blank"
    # One form of retry topic has a plus between group and topic; no other name has one.
    plain = topic.replace("+", "_", 1) if topic.startswith(RETRY_PREFIX) else topic
    if not _is_legal(plain):
        return f"the topic {topic!r} has characters other than % | letters digits _ -"
    longest = RETRY_TOPIC_LENGTH_MAX if is_retry_or_dlq(topic) else TOPIC_LENGTH_MAX
    if len(topic) > longest:
        return f"the topic has {len(topic)} characters; at most {longest} are allowed"
    return None


def group_problem(group: str) -> str | None:
    """Return why ``group`` is not a legal group name, or None."""
    if not group.strip():
        return "the group is blank"
    if not _is_legal(group):
        return f"the group {group!r} has characters other than % | letters digits _ -"
    if len(group) > GROUP_LENGTH_MAX:
        return f"the group has {len(group)} characters; at most {GROUP_LENGTH_MAX} are allowed"
    return None


def is_system_topic(topic: str) -> bool:
    """Tell whether this topic is reserved for the system."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_work_topic(topic: str) -> bool:
    """Tell whether only a broker may store messages in this topic or take them out of it.

    It keeps unfinished work there (delays, timers, halves, pops) or the tables of its group.
    """
    return topic in _WORK_TOPICS or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_own_offset(topic: str, group: str) -> bool:
    """Tell whether an offset is a broker's own progress with transactions or pops."""
    return group.startswith(SYSTEM_GROUP_PREFIX) and is_system_topic(topic)


def is_system_group(group: str) -> bool:
    """Tell whether this group belongs to tools or brokers, not to users."""
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in SYSTEM_GROUPS


def is_retry_or_dlq(topic: str) -> bool:
    """Tell whether this is a group's retry or dead-letter topic."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def retry_topic(group: str) -> str:
    """Return the retry topic of ``group``."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of ``group``."""
    return DLQ_PREFIX + group


def revive_topic(cluster: str) -> str:
    """Return the topic in which brokers of ``cluster`` log pops and acks."""
    return REVIVE_TOPIC_PREFIX + cluster


def reply_topic(cluster: str) -> str:
    """Return the topic for the replies of ``cluster``."""
    return f"{cluster}_REPLY_TOPIC"
