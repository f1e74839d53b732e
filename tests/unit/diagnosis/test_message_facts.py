from __future__ import annotations

from diagnosis.samples import make_message
from rocketpost.diagnosis.message_facts import destination_topic, log_file


def test_the_file_follows_from_the_settings() -> None:
    size = {"mappedFileSizeCommitLog": "1000"}
    assert log_file(size, 2500) == "00000000000000002000"
    assert log_file({**size, "storePathRootDir": "/s"}, 5) == "/s/commitlog/00000000000000000000"
    assert log_file({**size, "storePathCommitLog": "/c"}, 5) == "/c/00000000000000000000"
    assert log_file({}, 5) is None
    assert log_file({"mappedFileSizeCommitLog": "0"}, 5) is None


def test_the_topic_of_a_waiting_message_is_where_it_goes() -> None:
    assert destination_topic(make_message(REAL_TOPIC="X")) == "Demo"
