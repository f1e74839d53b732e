"""Consumer groups: their configuration and their members' subscriptions."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketpost.kernel.hashing import string_hash

SUBSCRIBE_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"


class GroupConfig(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=False):
    """One consumer group on one broker. Members in the order in which Java writes them."""

    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_retry_policy: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "CUSTOMIZED"}
    )
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class GroupChange(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """A change of a group; members that are None stay unchanged.

    Keys of ``attributes`` are signed: ``+name`` sets one and ``-name`` removes one.
    """

    attributes: dict[str, str] = {}
    broker_id: int | None = None
    consume_broadcast_enable: bool | None = None
    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_message_orderly: bool | None = None
    consume_timeout_minute: int | None = None
    group_name: str = ""
    group_retry_policy: dict[str, Any] | None = None
    group_sys_flag: int | None = None
    notify_consumer_ids_changed_enable: bool | None = None
    retry_max_times: int | None = None
    retry_queue_nums: int | None = None
    which_broker_when_consume_slowly: int | None = None


class Subscription(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A consumer's subscription to a topic. Members in the order in which Java writes them."""

    class_filter_mode: bool = False
    code_set: frozenset[int] | None = frozenset()
    expression_type: str | None = TAG
    sub_string: str = SUBSCRIBE_ALL
    sub_version: int = 0
    tags_set: frozenset[str] | None = frozenset()
    topic: str = ""

    @property
    def takes_all(self) -> bool:
        """Whether every message of the topic matches."""
        return self.is_tag and self.sub_string in ("", SUBSCRIBE_ALL)

    @property
    def is_tag(self) -> bool:
        """Whether the expression is a list of tags."""
        return not self.expression_type or self.expression_type == TAG


def parse_tags(topic: str, expression: str | None, *, version: int) -> Subscription:
    """Return the subscription that a tag expression such as ``A || B`` means."""
    text = (expression or "").strip()
    if text in ("", SUBSCRIBE_ALL):
        return Subscription(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=version)
    tags = frozenset(part.strip() for part in text.split("||")) - {""}
    return Subscription(
        topic=topic,
        sub_string=text,
        sub_version=version,
        tags_set=tags,
        code_set=frozenset(string_hash(tag) for tag in tags),
    )
