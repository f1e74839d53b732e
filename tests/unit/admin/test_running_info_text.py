from __future__ import annotations

from admin.samples import RUNNING_INFO
from rocketpost.admin.running_info_text import running_info_text
from rocketpost.diagnosis.running_info import decode_running_info


def test_a_consumer_of_java_is_understood_and_shown() -> None:
    text = running_info_text(decode_running_info(RUNNING_INFO))
    assert "language                                : JAVA" in text
    assert (
        "002 Topic: Demo                                     ClassFilter: false    "
        "SubExpression: A || B"
    ) in text
    assert (
        "Demo                                                              broker-a"
        "                          3     1                   "
    ) in text
    assert "ProcessQueueInfo [cachedMsgCount=0, commitOffset=1, droped=false]" in text
    [rates] = [line.split() for line in text.splitlines() if "3.25" in line]
    assert rates == ["Demo", "0.00", "0.00", "3.25", "1.00", "0.50", "2"]
    assert "#Consumer jstack#" not in text


def test_stacks_are_shown_if_the_consumer_sent_some() -> None:
    info = decode_running_info(b'{"jstack":"main waits"}')
    assert running_info_text(info).endswith("#Consumer jstack#\nmain waits\n")
