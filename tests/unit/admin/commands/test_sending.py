from __future__ import annotations

import pytest

from rocketpost.admin.command import Failure
from rocketpost.admin.commands.sending import (
    average_ms,
    choose_queue,
    make_producer,
    send_result_text,
)
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.client.message import SendResult, SendStatus
from rocketpost.model.route import MessageQueue

QUEUES = [MessageQueue("broker-a", 0, "T"), MessageQueue("broker-b", 0, "T"),
          MessageQueue("broker-b", 1, "T")]  # fmt: skip


def test_a_queue_is_chosen_by_broker_and_id() -> None:
    assert choose_queue(QUEUES, "broker-b", 1) == QUEUES[2]
    assert choose_queue(QUEUES, "broker-b", None) == QUEUES[1]


@pytest.mark.parametrize(("broker", "queue_id"), [("broker-c", None), ("broker-a", 1)])
def test_a_queue_that_is_not_there_is_refused_with_those_that_are(
    broker: str, queue_id: int | None
) -> None:
    with pytest.raises(Failure, match="broker-a/0, broker-b/0, broker-b/1"):
        choose_queue(QUEUES, broker, queue_id)


def test_the_first_send_does_not_count_unless_it_is_the_only_one() -> None:
    assert average_ms([97, 294, 88]) == 191.0
    assert average_ms([7]) == 7.0


def test_a_result_looks_as_in_java() -> None:
    result = SendResult(
        status=SendStatus.SEND_OK,
        message_id="FD02",
        offset_id="7F04F9",
        queue=MessageQueue("broker-a", 0, "broker-a"),
        queue_offset=1,
    )
    assert send_result_text(result) == (
        "SendResult [sendStatus=SEND_OK, msgId=FD02, offsetMsgId=7F04F9, "
        "messageQueue=MessageQueue [topic=broker-a, brokerName=broker-a, queueId=0], "
        "queueOffset=1, recallHandle=null]"
    )


def test_the_producer_shares_name_servers_and_time_out() -> None:
    admin = AdminClient(config=ClientConfig(name_servers="h:1", call_timeout=7.0))
    config = make_producer(admin).config
    assert (config.name_servers, config.call_timeout, config.send_timeout) == ("h:1", 7.0, 7.0)
