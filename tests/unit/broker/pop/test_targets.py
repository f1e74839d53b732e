"""The queues that a pop reads: each once, retries first or last, in both forms."""

from __future__ import annotations

from rocketpost.broker.pop.targets import (
    PopRequest,
    RetryRules,
    Target,
    Targets,
    own_retry_topics,
)
from rocketpost.model.topic import TopicConfig

OLDER, NEWER = "%RETRY%g_T", "%RETRY%g+T"


class Topics:
    def __init__(self, *names: str) -> None:
        self.names = names

    def find(self, topic: str) -> TopicConfig | None:
        if topic not in self.names:
            return None
        return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)


def targets(*names: str, draws: int = 0, **rules: object) -> Targets:
    found = Targets(topics=Topics(*names), random_below=lambda count: min(draws, count - 1))
    found.rules = RetryRules()._replace(**rules)
    return found


def request(topic: str = "T", queue_id: int = -1) -> PopRequest:
    config = TopicConfig(topic_name=topic, read_queue_nums=3, write_queue_nums=3)
    return PopRequest(config, "g", queue_id)


def test_all_queues_are_read_from_a_random_one_on() -> None:
    assert [each.queue_id for each in targets(draws=1).find(request())] == [1, 2, 0]
    assert list(targets().find(request(queue_id=2))) == [Target(0, "T", 2)]


def test_retry_topics_are_read_first_or_last() -> None:
    again = Target(1, OLDER, 0)
    assert next(iter(targets(OLDER, draws=19).find(request()))) == again
    assert list(targets(OLDER, draws=20).find(request()))[-1] == again
    assert next(iter(targets(OLDER, draws=20, first_percent=100).find(request()))) == again


def test_both_forms_are_read_unless_the_older_is_switched_off() -> None:
    both = targets(OLDER, NEWER)
    assert [each.retry for each in both.find(request())] == [1, 2, 0, 0, 0]
    assert both.retry_topics("T", "g") == [OLDER, NEWER]
    newer = targets(OLDER, NEWER, newer_form=True, older_form_read=False)
    assert [each.retry for each in newer.find(request())] == [2, 0, 0, 0]
    # What is written is always read.
    older = targets(OLDER, NEWER, older_form_read=False)
    assert older.retry_topics("T", "g") == [OLDER, NEWER]


def test_the_settings_choose_the_written_form_and_retries_keep_theirs() -> None:
    assert targets().written_retry_topic("T", "g") == OLDER
    assert targets(newer_form=True).written_retry_topic("T", "g") == NEWER
    assert targets(newer_form=True).written_retry_topic(OLDER, "g") == OLDER


def test_a_retry_topic_has_no_retry_topic() -> None:
    assert targets().retry_topics("%RETRY%g", "g") == []
    assert [each.retry for each in targets(OLDER).find(request("%RETRY%g"))] == [0, 0, 0]


def test_a_retry_topic_that_may_have_messages_of_others_is_not_a_topics_own() -> None:
    names = Topics("T", "b_T", OLDER, NEWER, "%RETRY%a_b_T", "%RETRY%a+b_T", "%RETRY%other_U")

    def own(topic: str, *readers: str, groups: tuple[str, ...] = ()) -> list[str]:
        known = Topics(*readers, *groups)
        return own_retry_topics(topic, readers, topics=names, groups=known)

    assert own("T", "g", "unknown") == [OLDER, NEWER]
    assert own("T", "g", groups=("g_T",)) == [NEWER], "a group of that name retries there"
    assert own("b_T", "a") == ["%RETRY%a_b_T", "%RETRY%a+b_T"]
    assert own("b_T", "a", groups=("a_b",)) == ["%RETRY%a+b_T"], "it may be T and a_b"
    assert own("T", "a_b", groups=("a",)) == []
