"""Header fields of requests about topics."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32


class CreateTopic(msgspec.Struct, rename="camel", kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). ``attributes`` is written ``+key=value,-key2``.

    Omitted fields stay unchanged; RocketMQ's brokers refuse a request without the queue numbers.
    ``force`` allows a change that hides messages, which is refused otherwise.
    """

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32 | None = None
    write_queue_nums: Int32 | None = None
    perm: Int32 | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool = False


class CreateTopics(msgspec.Struct, rename="camel", kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST (34); the topics are in the body."""

    force: bool = False


class TopicPage(msgspec.Struct, rename="camel", kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21): all topics, or a page of them if any field is given.

    ``data_version`` is the version of the earlier pages, as JSON; a page of another version begins
    with the first topic.
    """

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


class TopicPageResponse(msgspec.Struct, rename="camel", kw_only=True):
    """The number of topics on all pages."""

    total_topic_num: int


class TopicRequest(msgspec.Struct, rename="camel", kw_only=True):
    """A request that names a topic and nothing else.

    DELETE_TOPIC_IN_BROKER (215), GET_TOPIC_CONFIG (351), GET_TOPIC_STATS_INFO (202) and
    QUERY_TOPIC_CONSUME_BY_WHO (300).
    """

    topic: str
