"""Subscriptions of a consumer, as announced to brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from rocketpost.client.checks import check_text
from rocketpost.client.config import MessageModel, PushConsumerConfig
from rocketpost.client.consumer.push.handlers import HandlerSpec
from rocketpost.codec.bodies.client import ConsumerData
from rocketpost.errors import ConfigError
from rocketpost.filter import check_filter
from rocketpost.model.group import SQL92, SUBSCRIBE_ALL, Subscription, parse_tags
from rocketpost.model.names import retry_topic, topic_problem


class SubscriptionChange:
    """A change of the subscriptions that is being announced; awaiting it is optional."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self._task = task

    def __await__(self) -> Generator[object, None, None]:
        """Wait until the brokers know the change.

        Raises:
            Fault: A broker refuses a SQL filter; nothing has changed.
        """
        if self._task is not None:
            yield from asyncio.shield(self._task).__await__()


def subscription_of(topic: str, tags: str, sql: str | None) -> Subscription:
    """Return the subscription to a topic with a filter.

    Raises:
        ConfigError: The topic's name is illegal, or both tags and a SQL filter are given.
        FilterError: The SQL filter is wrong; the text says where and why.
    """
    check_text("topic", topic)
    problem = topic_problem(topic)
    if problem is not None:
        raise ConfigError(problem)
    return make_subscription(topic, tags, sql, version=time.time_ns() // 1_000_000)


def make_subscription(topic: str, tags: str, sql: str | None, *, version: int) -> Subscription:
    """Return a subscription by tags, or by a SQL filter if there is one.

    Raises:
        ConfigError: Both tags and a SQL filter are given.
        FilterError: The SQL filter is wrong; the text says where and why.
    """
    check_text("tags", tags)
    if sql is None:
        return parse_tags(topic, tags, version=version)
    check_text("sql", sql)
    if tags != SUBSCRIBE_ALL:
        raise ConfigError(
            "give tags or sql, not both; a SQL filter can ask for tags: TAGS IN ('a', 'b')"
        )
    check_filter(sql)
    return Subscription(topic=topic, sub_string=sql, expression_type=SQL92, sub_version=version)


class Subscriptions:
    """The subscriptions and handlers of one consumer. Belongs to the event loop."""

    def __init__(self, group: str, config: PushConsumerConfig) -> None:
        self._group = group
        self._config = config
        self._wanted: dict[str, Subscription] = {}
        self._retries: dict[str, str] = {}
        self.listeners: dict[str, HandlerSpec] = {}
        self.orderly: bool | None = None
        """Whether messages are handled in order; None until the first subscription."""

    def __len__(self) -> int:
        return len(self._wanted)

    def check_kind(self, listener: HandlerSpec) -> None:
        """Raise unless a handler is of the same kind as the others.

        Raises:
            ConfigError: Orderly and other handlers are mixed.
        """
        if self.orderly not in (None, listener.orderly):
            # Brokers move every retry of a group that holds locks to the dead letters.
            raise ConfigError("the handlers of a group must all be orderly, or none")

    def add(self, subscription: Subscription, listener: HandlerSpec) -> None:
        """Add a subscription, replacing an earlier one of its topic."""
        self.check_kind(listener)
        self.orderly = listener.orderly
        self._wanted[subscription.topic] = subscription
        self.listeners[subscription.topic] = listener

    def remove(self, topic: str) -> None:
        """Remove a subscription."""
        self._wanted.pop(topic, None)
        self._retries.pop(topic, None)
        self.listeners.pop(topic, None)

    def pull_retries(self, topic: str, retries: str | None) -> bool:
        """Also pull the retry topic of messages popped from ``topic``, or stop doing so.

        Returns:
            Whether this changes the subscriptions.
        """
        before = self._retries.pop(topic, None)
        if retries is not None and topic in self._wanted:
            self._retries[topic] = retries
        return self._retries.get(topic) != before

    @property
    def given(self) -> list[Subscription]:
        """Subscriptions of the application."""
        return list(self._wanted.values())

    @property
    def topics(self) -> list[str]:
        """Every consumed topic, including the group's retry topic."""
        return [subscription.topic for subscription in self._all()]

    def find(self, topic: str) -> Subscription | None:
        """Return the subscription to a topic; None if there is none."""
        if topic == retry_topic(self._group):
            return self._retry()
        if topic in self._retries.values():
            return Subscription(topic=topic, sub_string=SUBSCRIBE_ALL)
        return self._wanted.get(topic)

    def describe(self) -> ConsumerData:
        """Return the group's part of a heartbeat."""
        return ConsumerData(
            group_name=self._group,
            consume_from_where=self._config.start_from.value,
            message_model=self._config.model.value,
            subscription_data_set=self._all(),
        )

    def _all(self) -> list[Subscription]:
        if self._config.model is MessageModel.BROADCASTING:
            return self.given  # failed messages are not retried
        popped = [Subscription(topic=each) for each in self._retries.values()]
        return [*self.given, *popped, self._retry()]

    def _retry(self) -> Subscription:
        return Subscription(topic=retry_topic(self._group), sub_string=SUBSCRIBE_ALL)
