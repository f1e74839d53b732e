from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rocketpost
from rocketpost.console.catalogue import load_catalogue
from rocketpost.console.reasons import Reasons
from rocketpost.diagnosis.fate import Copy, Facts, GroupOffsets, judge_fate
from rocketpost.model.group import Subscription

CATALOGUE = load_catalogue()
REASONS = Reasons(CATALOGUE)
SOURCES = "\n".join(path.read_text() for path in Path(rocketpost.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("no member is online", "没有成员在线"),
        ("none of 3 members has the queue", "3 个成员都不持有此队列"),
        ("me@1: it is paused, for 3 s", "me@1：已暂停，已 3 秒"),
        (
            "no member takes messages: the queue has no owner, is paused, or its owner is busy, or "
            "none of them matches A || B, locked by me@1 for 9 s more",
            "没有成员拉取消息：队列没有归属、已暂停，或其归属成员繁忙，或没有消息匹配 A || B，"
            "由 me@1 锁定，还剩 9 秒",
        ),
        (
            "A1 at offset 7 waits to be handled again after 2 failures",
            "位点 7 的 A1 等待再次处理（已失败 2 次）",
        ),
        (
            "the offset of the group is 3, it is the next one; nobody is online, so the filter is "
            "unknown",
            "消费组位点为 3，它是下一条；无人在线，因此过滤条件未知",
        ),
        ("1 done, 2 refused, 3 not_tried", "1 项完成，2 项被拒绝，3 项未尝试"),
    ],
)
def test_sentences_are_translated(english: str, chinese: str) -> None:
    assert REASONS.translate("zh", english) == chinese
    assert REASONS.translate("en", english) == english


def test_what_is_not_known_stays_as_it_is() -> None:
    for text in ("CODE: 17  DESC: no topic", "it is odd, for 3 s", "", "{reason}", "x; y" * 500):
        assert REASONS.translate("zh", text) == text.replace("; ", "；" if len(text) < 99 else "; ")
    deep = "it is paused" + ", for 3 s" * 9
    assert REASONS.translate("zh", deep) == deep


def copy_of(times: int, due_ms: int | None = None) -> Copy:
    return Copy(
        topic="%RETRY%g", broker_name="b", queue_id=0, queue_offset=times, offset_id="X",
        reconsume_times=times, store_ms=1, due_ms=due_ms,
    )  # fmt: skip


def facts(**more: Any) -> Facts:
    return Facts(group="g", tag="A", queue_offset=5, **more)


BEFORE = GroupOffsets(committed=3)
OTHER = Subscription(topic="T", sub_string="B", tags_set=frozenset({"B"}))
SQL = Subscription(topic="T", sub_string="a = 1", expression_type="SQL92")


@pytest.mark.parametrize(
    "found",
    [
        facts(),
        facts(offsets=BEFORE, subscription=OTHER, members=1),
        facts(offsets=BEFORE, subscription=SQL, members=1),
        facts(offsets=GroupOffsets(committed=5, pulled=9)),
        facts(offsets=GroupOffsets(committed=3, pulled=9), members=1),
        facts(offsets=GroupOffsets(pulled=9), members=1),
        facts(offsets=GroupOffsets(committed=9)),
        facts(offsets=GroupOffsets(popped_until_ms=9)),
        facts(broadcast=True),
        facts(delayed_until_ms=1),
        facts(delayed_until_ms=10**15),
        facts(dead=(copy_of(1),)),
        facts(dead=(copy_of(16),)),
        facts(waiting=(copy_of(2, due_ms=1),), retry_max=16),
        facts(waiting=(copy_of(2, due_ms=10**15),)),
        facts(retries=((copy_of(2), GroupOffsets(committed=9)),)),
        facts(retries=((copy_of(2), GroupOffsets(committed=1, pulled=9)),)),
    ],
)
def test_every_fate_has_a_translation(found: Facts) -> None:
    english = judge_fate(found, now_ms=100).reason
    chinese = REASONS.translate("zh", english)
    assert not re.findall(r"[a-z]{3,}", chinese), (english, chinese)


def test_every_form_begins_like_a_sentence_of_the_sources() -> None:
    for key, texts in CATALOGUE.entries():
        if key.startswith("reason."):
            longest = max(re.split(r"\{\w+\}", texts["en"]), key=len)
            assert " ".join(longest.strip(" ,:;").split()[:2]) in SOURCES, key
