from __future__ import annotations

from admin.samples import make_message
from rocketpost.admin.commands.reading import entries_text, message_line
from rocketpost.codec.bodies.stats import QueueEntries, QueueEntry
from rocketpost.model.group import parse_tags

ENTRY = QueueEntry(eval=False, physic_offset=0, physic_size=262, tags_code=3433164)


def test_a_message_on_one_line_is_that_of_the_original() -> None:
    message = make_message(b"\x00\xff", UNIQ_KEY="FD00", TAGS="paid")
    size = message.record.size
    assert message_line(message, charset="latin-1", with_body=True) == (
        f"MSGID: FD00 MessageExt [brokerName=broker-a, queueId=1, storeSize={size}, "
        "queueOffset=5, sysFlag=0, bornTimestamp=1794784528182, bornHost=/127.0.0.1:44872, "
        "storeTimestamp=1794784528244, storeHost=/127.0.0.1:34141, "
        "msgId=7F0000010000855D0000000000000312, commitLogOffset=786, "
        f"bodyCRC={message.record.body_crc}, reconsumeTimes=0, preparedTransactionOffset=0, "
        "toString()=Message{topic='Demo', flag=0, properties={UNIQ_KEY=FD00, TAGS=paid}, "
        "body=[0, -1], transactionId='null'}] BODY: \x00ÿ"
    )


def test_a_body_may_be_left_out() -> None:
    line = message_line(make_message(), charset="utf-8", with_body=False)
    assert line.endswith("BODY: NOT PRINT BODY")


def test_entries_of_a_queue_are_those_of_the_original() -> None:
    entries = QueueEntries(max_queue_index=4, min_queue_index=0, queue_data=[ENTRY, ENTRY])
    line = "=" * 38
    entry = (
        "ConsumeQueueData{physicOffset=0, physicSize=262, tagsCode=3433164, "
        "extendDataJson='null', bitMap='null', eval=false, msg='null'}"
    )
    assert entries_text(entries, first=2, whose=None).splitlines() == [
        "Queue data: ",
        "max: 4, min: 0",
        line,
        "idx: 2",
        entry,
        line,
        "idx: 3",
        entry,
        line,
    ]


def test_entries_name_a_group_that_is_not_online() -> None:
    entries = QueueEntries(max_queue_index=0, min_queue_index=0, queue_data=[])
    lines = entries_text(entries, first=0, whose="g@Demo").splitlines()
    assert lines[:2] == ["Filter data: ", "g@Demo is not online!"]


def test_entries_show_the_subscription_of_a_group() -> None:
    entries = QueueEntries(
        max_queue_index=0,
        min_queue_index=0,
        queue_data=[],
        subscription_data=parse_tags("Demo", "B || A", version=7),
    )
    text = entries_text(entries, first=0, whose="g@Demo")
    assert '\t"codeSet":[65,66],\n' in text
    assert '\t"tagsSet":["A","B"],\n' in text
    assert "Filter data: \nnull\n" in text
