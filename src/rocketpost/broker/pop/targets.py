"""Queues that a pop reads: those of its topic, and those of its retry topics.

Messages that a group popped from a topic and did not acknowledge are redelivered in a retry topic,
``%RETRY%group_topic``, or in the newer form ``%RETRY%group+topic``, which is never ambiguous. The
settings choose the form that is written; both are read while they have messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.filter.matching import Matcher
from rocketpost.broker.priority import FACTOR_MAX, by_level, has_levels
from rocketpost.codec.headers.pop import (
    IN_RETRY_TOPIC,
    IN_RETRY_TOPIC_V2,
    IN_TOPIC,
    real_topic,
)
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.topic import TopicConfig

_RETRY_FORMS: Final = (IN_RETRY_TOPIC, IN_RETRY_TOPIC_V2)
COUNT_MAX: Final = 32
"""Messages that one pop may ask for."""
ALL_QUEUES: Final = -1
EMPTY_QUEUES_MAX: Final = 256
"""Number of queues of a topic up to which a pop stores offsets for queues without messages.

Otherwise a client could fill the offset table with a few pops of a topic with many queues.
"""


class PopRequest(NamedTuple):
    """A pop, after its checks."""

    topic: TopicConfig
    group: str
    queue_id: int
    """One queue, or -1 for all."""
    count_max: int = COUNT_MAX
    invisible_ms: int = 60_000
    tags: AbstractSet[int] = frozenset()
    matcher: Matcher | None = None
    from_end: bool = False
    """Whether a group that is new to a queue starts at its end."""
    in_order: bool = False
    """Whether a queue hands out nothing more until its batch is finished."""
    priority_factor: int = FACTOR_MAX
    """Percentage of pops that read the levels in order, if the topic has levels."""
    attempt_id: str = ""
    """Identifies an attempt at popping in order; repeating it returns the same messages."""
    only: Mapping[tuple[str, int], None] | None = None
    """The only topics and queues that may have new messages; None if unknown."""

    @property
    def is_filtered(self) -> bool:
        """Whether only some messages are wanted."""
        return bool(self.tags) or self.matcher is not None

    @property
    def fixes_start(self) -> bool:
        """Whether a new group stores offset 0 for a queue that never had a message.

        Otherwise a group whose next pop comes after the queue has ceased to count as new would
        skip the messages that were stored in between.
        """
        return self.from_end and self.topic.read_queue_nums <= EMPTY_QUEUES_MAX

    @property
    def queue_ids(self) -> range:
        """The requested queues."""
        if self.queue_id < 0:
            return range(self.topic.read_queue_nums)
        return range(self.queue_id, self.queue_id + 1)


class Cursor(NamedTuple):
    """A group in a queue: the key of an offset."""

    topic: str
    group: str
    queue_id: int


class Target(NamedTuple):
    """A queue to read."""

    retry: int
    topic: str
    queue_id: int

    def cursor(self, group: str) -> Cursor:
        """Return the cursor of a group in this queue."""
        return Cursor(self.topic, group, self.queue_id)


class RetryRules(NamedTuple):
    """Rules for redelivery."""

    newer_form: bool = False
    """Whether redelivered messages are written to the newer form of retry topic."""
    older_form_read: bool = True
    """Whether the older form is then read as well."""
    first_percent: int = 20
    """Percentage of pops that read retry topics first; the others read them last."""


class Topics(Protocol):
    """The part of the topic table that popping uses."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...


class Groups(Protocol):
    """The part of the group table that a deletion uses."""

    def find(self, group: str) -> object | None:
        """Return the configuration of ``group``."""
        ...


def own_retry_topics(
    topic: str, readers: Iterable[str], *, topics: Topics, groups: Groups
) -> list[str]:
    """Return the retry topics that have messages of ``topic`` only.

    A name in the older form may mean several topics and groups. It is left out if it does.

    Args:
        topic: The topic.
        readers: The groups that have offsets in it.
        topics: All topics.
        groups: All groups.
    """
    found = []
    for group in readers:
        older, newer = (real_topic(form, group, topic) for form in _RETRY_FORMS)
        words = older.removeprefix(RETRY_PREFIX)
        others = (
            (words[:at], words[at + 1 :])
            for at in range(1, len(words))
            if words[at] == "_" and at != len(group)
        )
        is_shared = groups.find(words) is not None or any(
            groups.find(group) is not None and topics.find(name) is not None
            for group, name in others
        )
        names = [newer] if is_shared else [older, newer]
        found += [name for name in names if topics.find(name) is not None]
    return found


class Targets:
    """Finds the queues of pops. Owned by the event loop.

    Args:
        random_below: Chooses the queue to begin with.
    """

    def __init__(self, *, topics: Topics, random_below: Callable[[int], int]) -> None:
        self._topics = topics
        self._random_below = random_below
        self.rules = RetryRules()

    def find(self, request: PopRequest) -> Iterator[Target]:
        """Yield the queues to read. Queues of retry topics come first or last, by chance.

        A topic with levels is read from its highest level down, each with its retry queue.
        """
        if request.only is not None:
            yield from self._find_among(request, request.only)
            return
        topic = request.topic.topic_name
        retries = self._retry_targets(topic, request.group)
        is_first = bool(retries) and self._random_below(100) < self.rules.first_percent
        ids = request.queue_ids
        if has_levels(request.topic) and self._pops_by_level(request):
            own = [Target(IN_TOPIC, topic, queue_id) for queue_id in ids]
            yield from by_level([*own, *retries], retry_first=is_first)
            return
        if is_first:
            yield from retries
        begin = self._random_below(len(ids)) if len(ids) > 1 else 0
        for queue_id in chain(ids[begin:], ids[:begin]):
            yield Target(IN_TOPIC, topic, queue_id)
        if not is_first:
            yield from retries

    def _find_among(
        self, request: PopRequest, only: Mapping[tuple[str, int], None]
    ) -> list[Target]:
        """Return the queues among ``only`` that a pop reads."""
        topic, ids = request.topic.topic_name, request.queue_ids
        forms = {real_topic(form, request.group, topic): form for form in self._forms(topic)}
        found = []
        for name, queue_id in only:
            if name == topic and queue_id in ids:
                found.append(Target(IN_TOPIC, name, queue_id))
            elif name in forms:
                config = self._topics.find(name)
                if config is not None and queue_id < config.read_queue_nums:
                    found.append(Target(forms[name], name, queue_id))
        if len(found) > 1 and has_levels(request.topic) and self._pops_by_level(request):
            return by_level(found, retry_first=False)
        return found

    def _pops_by_level(self, request: PopRequest) -> bool:
        return not request.in_order and self._random_below(FACTOR_MAX) < request.priority_factor

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Return the topics in which messages of ``topic`` may be redelivered to ``group``."""
        return [real_topic(form, group, topic) for form in self._forms(topic)]

    def written_retry_topic(self, topic: str, group: str) -> str:
        """Return the topic to which redelivered messages of ``topic`` are written."""
        if topic.startswith(RETRY_PREFIX):
            return topic
        form = IN_RETRY_TOPIC_V2 if self.rules.newer_form else IN_RETRY_TOPIC
        return real_topic(form, group, topic)

    def _forms(self, topic: str) -> list[int]:
        if topic.startswith(RETRY_PREFIX):
            return []
        if self.rules.newer_form and not self.rules.older_form_read:
            return [IN_RETRY_TOPIC_V2]
        return list(_RETRY_FORMS)

    def _retry_targets(self, topic: str, group: str) -> list[Target]:
        found = []
        for form in self._forms(topic):
            config = self._topics.find(real_topic(form, group, topic))
            if config is not None:
                name, count = config.topic_name, config.read_queue_nums
                found += [Target(form, name, queue_id) for queue_id in range(count)]
        return found
