from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from admin.samples import make_message
from rocketpost.admin.command import Failure
from rocketpost.admin.commands.dead_letter import (
    _export_to,
    cause_rows,
    letter_members,
    letter_text,
    make_selection,
    resent_members,
    resent_text,
    tally_text,
)
from rocketpost.client.admin import DeadLetter, Outcome, Resent, Selection

LETTER = DeadLetter("G", make_message(UNIQ_KEY="U", KEYS="a b", RETRY_TOPIC="Orders", who="me"))


def test_words_are_parted_by_commas() -> None:
    assert make_selection("a, b,,", "", begin_ms=1) == Selection(
        ids=frozenset({"a", "b"}), begin_ms=1
    )


def test_letters_are_counted_by_cause() -> None:
    def dead(**properties: str) -> DeadLetter:
        return DeadLetter("G", make_message(**properties))

    letters = [dead(), dead(CONSUME_FAILURE="KeyError", CONSUME_FAILURE_TEXT="a"),
               dead(CONSUME_FAILURE="KeyError", CONSUME_FAILURE_TEXT="b")]  # fmt: skip
    assert [(row[0], row[3]) for row in cause_rows(letters)] == [(2, "KeyError"), (1, "unknown")]
    assert [letter.cause for letter in letters] == ["unknown", "KeyError: a", "KeyError: b"]
    by_cause = [letter for letter in letters if Selection(cause="keyerror: B").takes(letter)]
    assert by_cause == letters[2:]


def test_a_letter_is_shown(utc: None) -> None:
    text = letter_text(LETTER, charset="utf-8")
    assert "Topic:               Orders" in text
    assert "Message Body:        body-0" in text
    assert f"Re-sent With ID:     {LETTER.resent_id}" in text


def test_a_letter_has_its_body_in_base64() -> None:
    members = letter_members(LETTER)
    assert members["body"] == "Ym9keS0w"
    assert members["keys"] == ["a", "b"]
    assert members["originMsgId"] is None


def test_the_outcome_of_a_dead_letter_is_one_line() -> None:
    refused = Resent(LETTER, Outcome.REFUSED, reason="why")
    assert resent_text(refused) == f"REFUSED       {LETTER.id} Orders {LETTER.resent_id} why"
    assert resent_members(refused)["reason"] == "why"
    assert tally_text(Counter()) == "no dead letter is selected"
    assert tally_text(Counter({Outcome.REFUSED: 1, Outcome.SENT: 2})) == "2 SENT, 1 REFUSED"


def test_an_export_that_fails_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), _export_to(str(path)) as write:
        write("half" * (1 // 0))
    assert not path.exists()
    with _export_to(str(path)) as write:
        write("whole")
    assert path.read_text() == "whole"
    with pytest.raises(Failure, match="cannot write"), _export_to(str(path / "x")):
        pass
