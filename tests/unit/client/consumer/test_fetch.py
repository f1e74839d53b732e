from __future__ import annotations

from typing import Any, cast

import pytest

from rocketpost.client.consumer.fetch import Fetcher, PullQuery
from rocketpost.client.session import Session
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue

QUEUE = MessageQueue("a", 3, "T")


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("commit", [None, 0, 8])
@pytest.mark.parametrize("is_slave", [True, False])
def test_a_pull_has_the_fields_of_its_header(
    tells: bool, commit: int | None, is_slave: bool
) -> None:
    subscription = Subscription(topic="T", sub_string="A || B", sub_version=17)
    wish = PullQuery(
        QUEUE, 5, subscription, hold_ms=15, commit_offset=commit, tell_subscription=tells
    )
    flag = 2 | (4 if tells else 0) | (1 if commit is not None and not is_slave else 0)
    header = PullMessage(
        consumer_group="G",
        topic="T",
        queue_id=3,
        queue_offset=5,
        max_msg_nums=32,
        sys_flag=flag,
        commit_offset=commit or 0,
        suspend_timeout_millis=15,
        subscription="A || B" if tells else None,
        sub_version=17,
        expression_type=subscription.expression_type,
        max_msg_bytes=2**31 - 1,
    )
    fetcher = Fetcher(cast(Session, cast(Any, None)), "G")
    assert fetcher._fields(wish, is_slave=is_slave) == to_fields(header)
